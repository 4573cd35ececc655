"""A model hub: the files of a repository with their checksums, downloaded with resumption."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import httpx2
import pooch
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # by its __getattr__

from fetching.manifest import FetchError, HubPlace, Published, RemoteFile, Snapshot

VARIABLES = ("PARLEY_MODEL_HUB", "HF_ENDPOINT")
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of a variable
PART = ".part"
_LIST_S = 30.0
_CONNECT_S = 4.0
_NO_SUCH_RANGE = 416
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_WAITS_S = (1.0, 4.0, 15.0)
"""Before each further attempt at a busy hub; ``huggingface_hub`` repeats little of what is asked here."""
T = TypeVar("T")


class HubUnreachableError(FetchError):
    """The hub does not answer: another file of it needs no attempt."""


class Hub:
    """The hub that the environment names, by default that of ``huggingface_hub``."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        named = next((environment[name] for name in VARIABLES if environment.get(name)), constants.ENDPOINT)
        self.address = named.rstrip("/")
        # False: a token that was stored for another hub is not sent to this one.
        self._token = environment.get(TOKEN_VARIABLE) or False
        self._api = HfApi(endpoint=self.address, token=self._token, library_name="parley")

    def check_reachable(self, repository: str) -> None:
        """Ask for a repository once; HubUnreachableError if there is no answer."""
        try:
            self._api.model_info(repository, timeout=_CONNECT_S)
        except HfHubHTTPError:
            return  # an answer; the file has an error of its own
        except httpx2.HTTPError as error:
            raise self._error(error, repository) from error

    def snapshot(self, entry: Published, folder: Path) -> Snapshot:
        """The present files of an entry of the manifest.

        Args:
            entry: of the manifest.
            folder: for small files, which are downloaded: of those the hub has git's checksums only.

        Raises:
            FetchError: the repository is missing, closed, or lacks such files.
        """
        try:
            info = _repeat(
                lambda: self._api.model_info(
                    entry.repository, revision=entry.revision, files_metadata=True, timeout=_LIST_S
                )
            )
            listed = {one.rfilename: one for one in info.siblings or () if not _is_reserved(one.rfilename)}
            found = {glob: fnmatch.filter(listed, glob) for glob in entry.include}
            files = []
            for name in sorted({name for names in found.values() for name in names}):
                one = listed[name]
                place = HubPlace(repository=entry.repository, revision=str(info.sha), path=name)
                digest = one.lfs.sha256 if one.lfs else self._digest(place, str(one.blob_id), folder)
                files.append(RemoteFile(name=name, size=one.size or 0, sha256=digest))
        except (HfHubHTTPError, httpx2.HTTPError) as error:
            raise self._error(error, entry.repository) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FetchError(
                f"the hub's answer about {entry.repository} cannot be understood ({error}); is "
                f"{VARIABLES[0]} right?"
            ) from error
        if missing := [glob for glob, names in found.items() if not names]:
            raise FetchError(f"{entry.repository} has no {', '.join(missing)} at {info.sha}")
        return Snapshot(repository=entry.repository, commit=str(info.sha), files=tuple(files))

    def _digest(self, place: HubPlace, blob: str, folder: Path) -> str:
        """Bring a small file into a folder under its SHA-256, and return that."""
        part = folder / f"small{PART}"
        part.unlink(missing_ok=True)
        self._fill(place, part, None)
        content = part.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        if git.hexdigest() != blob:
            raise FetchError(
                f"{place.path} has a wrong checksum: the hub or the way to it is not to be trusted"
            )
        digest = str(pooch.file_hash(part))
        part.replace(folder / digest)
        return digest

    def download(self, place: HubPlace, file: RemoteFile, part: Path) -> None:
        """Download a file; what has come into ``part`` before is resumed.

        Raises:
            FetchError: it is not available, or its content is wrong, also when all of it is read anew.
        """
        for _ in range(2):
            if part.is_symlink() or (part.exists() and part.stat().st_size > file.size):
                part.unlink()
            self._fill(place, part, file.size)
            if file.matches(part):
                return
            part.unlink()
        raise FetchError(
            f"{place.path} has a wrong size or checksum, twice: the hub or the way to it is not to be trusted"
        )

    def _fill(self, place: HubPlace, part: Path, size: int | None) -> None:
        """Append to a file what it lacks."""
        address = hf_hub_url(place.repository, place.path, revision=place.revision, endpoint=self.address)
        headers = build_hf_headers(token=self._token, library_name="parley")

        def append() -> None:
            # hf_hub_download begins anew in each process; this appends to what is there.
            with part.open("ab") as output:
                http_get(
                    address,
                    output,
                    resume_size=output.tell(),
                    headers=headers,
                    expected_size=size,
                    displayed_filename=place.path,
                )

        try:
            _repeat(append)
        except (HfHubHTTPError, httpx2.HTTPError) as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code == _NO_SUCH_RANGE:
                return  # nothing of it fits; the checksum is wrong
            if not part.stat().st_size:
                part.unlink()
            raise self._error(error, f"{place.path} at {address}") from error
        except ValueError as error:  # a file that is too large for http_get
            raise FetchError(f"{place.path} at {address}: {error}") from error
        except OSError as error:
            if error.errno is not None:  # of the disk; without: of http_get, for a wrong length
                raise

    def _error(self, error: Exception, what: str) -> FetchError:
        if not isinstance(error, HfHubHTTPError):
            return HubUnreachableError(
                f"no connection to {self.address} ({type(error).__name__}: {error}); another address of the "
                f"hub can be given in {' or '.join(VARIABLES)}"
            )
        status = error.response.status_code
        if status in (401, 403):
            advice = f"accept the model's licence there, then set {TOKEN_VARIABLE}"
        else:
            advice = f"is {VARIABLES[0]} right? Else run this again later"
        return FetchError(f"the hub refuses {what} (status {status}): {advice}")


def _repeat(ask: Callable[[], T]) -> T:
    """Ask a hub again while it is busy; the last answer counts."""
    for wait_s in _WAITS_S:
        try:
            return ask()
        except HfHubHTTPError as error:
            if error.response.status_code not in _BUSY:
                raise
        time.sleep(wait_s)
    return ask()


def _is_reserved(name: str) -> bool:
    """Whether a file could be taken for one that a download itself writes into the folder."""
    return any(part.startswith(".") for part in name.split("/"))

"""A model hub: the files of a repository with their checksums, downloaded with resumption."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # by its __getattr__

from fetching.manifest import FetchError, Published, RemoteFile, Snapshot

VARIABLES = ("PARLEY_MODEL_HUB", "HF_ENDPOINT")
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of a variable
PART = ".part"
_LIST_S = 30.0
_BUSY = {408, 425, 429, 500, 502, 503, 504}
_NO_SUCH_RANGE = 416
_WAITS_S = (1.0, 4.0, 15.0)
_Answer = TypeVar("_Answer")
_CONNECT_S = 4.0


class HubUnreachableError(FetchError):
    """The hub does not answer: another file of it needs no attempt."""


class WrongContentError(FetchError):
    """The hub gives other bytes than were announced or pinned."""


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
            raise HubUnreachableError(self._no_connection(error)) from error

    def snapshot(self, weights: Published) -> Snapshot:
        """The present files of an entry of the manifest.

        Raises:
            FetchError: the repository is missing, closed, or lacks such files.
        """
        try:
            info = self._patiently(
                lambda: self._api.model_info(
                    weights.repository, revision=weights.revision, files_metadata=True, timeout=_LIST_S
                )
            )
            files = [
                RemoteFile(
                    one.rfilename,
                    int(one.size or 0),
                    sha256=one.lfs.sha256 if one.lfs else None,
                    git_blob=None if one.lfs else one.blob_id,
                )
                for one in info.siblings or ()
                if not _is_reserved(one.rfilename)
            ]
        except (HfHubHTTPError, httpx2.HTTPError) as error:
            raise self._error(error, weights.repository) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FetchError(
                f"the hub's answer about {weights.repository} cannot be understood ({error}); is "
                f"{VARIABLES[0]} right?"
            ) from error
        found = {glob: fnmatch.filter([file.name for file in files], glob) for glob in weights.include}
        if missing := [glob for glob, names in found.items() if not names]:
            raise FetchError(f"{weights.repository} has no {', '.join(missing)} at {info.sha}")
        chosen = {name for names in found.values() for name in names}
        kept = tuple(file for file in files if file.name in chosen)
        return Snapshot(str(info.sha), kept, weights.repository)

    def download(self, repository: str, commit: str, file: RemoteFile, target: Path) -> None:
        """Download a file; what came of it before stays in a file beside ``target``, and is resumed.

        Args:
            repository: on the hub.
            commit: of the repository.
            file: its path there, size and checksum.
            target: its place; it appears there when it is complete and checked.

        Raises:
            FetchError: it is not available.
            WrongContentError: its content is wrong, also when all of it is read anew.
        """
        part = target.with_name(target.name + PART)
        part.parent.mkdir(parents=True, exist_ok=True)
        address = hf_hub_url(repository, file.name, revision=commit, endpoint=self.address)
        for again in (False, True):
            if again or part.is_symlink() or arrived(target) > file.size:
                part.unlink(missing_ok=True)
            try:
                self._patiently(lambda: self._fill(address, file, part))
            except (HfHubHTTPError, httpx2.HTTPError) as error:
                if not part.stat().st_size:
                    part.unlink()
                raise self._error(error, f"{file.name} at {address}") from error
            if file.matches(part):
                part.replace(target)
                return
        part.unlink(missing_ok=True)
        raise WrongContentError(
            f"{file.name} has a wrong size or checksum, twice: the hub or the way to it is not to be trusted"
        )

    @staticmethod
    def _patiently(request: Callable[[], _Answer]) -> _Answer:
        """Repeat a request that a busy hub refuses."""
        for wait_s in _WAITS_S:
            try:
                return request()
            except HfHubHTTPError as error:
                if error.response.status_code not in _BUSY:
                    raise
                time.sleep(wait_s)
        return request()

    def _fill(self, address: str, file: RemoteFile, part: Path) -> None:
        """Append to a file what it lacks."""
        headers = build_hf_headers(token=self._token, library_name="parley")
        try:
            # hf_hub_download begins anew in each process; this appends to what is there.
            with part.open("ab") as output:
                http_get(
                    address,
                    output,
                    resume_size=output.tell(),
                    headers=headers,
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
        except HfHubHTTPError as error:
            if error.response.status_code == _NO_SUCH_RANGE:
                return  # nothing of it fits; the checksum is wrong
            raise
        except OSError as error:
            if error.errno is not None:  # of the disk; without: of http_get, for a wrong length
                raise

    def _error(self, error: Exception, what: str) -> FetchError:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
        if isinstance(error, GatedRepoError) or status in (401, 403):
            return FetchError(
                f"the hub refuses {what} (status {status}): accept the model's licence there, then set "
                f"{TOKEN_VARIABLE}"
            )
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            return FetchError(f"the hub has no {what}; is {VARIABLES[0]} right?")
        if status:
            return FetchError(f"status {status} for {what}; run this again later")
        return HubUnreachableError(self._no_connection(error))

    def _no_connection(self, error: Exception) -> str:
        return (
            f"no connection to {self.address} ({type(error).__name__}: {error}); another address of the hub "
            f"can be given in {' or '.join(VARIABLES)}"
        )


def arrived(target: Path) -> int:
    """Bytes of a file's incomplete download."""
    part = target.with_name(target.name + PART)
    return part.stat().st_size if part.exists() else 0


def _is_reserved(name: str) -> bool:
    """Whether a file could be taken for one that a download itself writes into the folder."""
    return name.endswith(PART) or any(part.startswith(".") for part in name.split("/"))

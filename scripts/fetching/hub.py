"""A model hub: the files of a repository, downloaded with resumption, checked, and renamed when complete."""

from __future__ import annotations

import email.utils
import fnmatch
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote

import httpx

from fetching.manifest import FetchError, Published, RemoteFile, Snapshot, check_name

BASE_VARIABLES = ("PARLEY_MODEL_HUB", "HF_ENDPOINT")
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of a variable
_PAGES = 50
_LONGEST_ANSWER = 16 << 20
"""Bytes of a listing's page; one of a thousand files has 300 kB."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}

PART = ".part"
_BLOCK = 1 << 20
_FULL_ATTEMPTS = 2


def base_address(environment: Mapping[str, str] = os.environ) -> str:
    """The hub's address: from the environment, else the default of the package ``huggingface_hub``."""
    for variable in BASE_VARIABLES:
        if environment.get(variable):
            return environment[variable].rstrip("/")
    from huggingface_hub import constants  # noqa: PLC0415 - slow, and needed here only

    return str(constants.ENDPOINT).rstrip("/")


class TransientError(Exception):
    """Another attempt may succeed; ``wait_s`` is the hub's own Retry-After."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class NoConnectionError(TransientError):
    """The hub's address does not answer, or not in time."""


class WrongContentError(FetchError):
    """The hub gives other bytes than were announced or pinned."""


class HubUnreachableError(FetchError):
    """The hub is unreachable: another file of it needs no attempt."""


@dataclass(frozen=True)
class Patience:
    """Number and spacing of attempts."""

    attempts: int = 6
    """Consecutive failures; any received data starts the count anew."""
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = math.inf
    """A longer Retry-After is not waited for."""

    def wait_s(self, failures: int) -> float:
        """Seconds before the next attempt: exponential, with jitter."""
        longest = min(self.longest_s, self.first_s * 2.0 ** (failures - 1))
        return random.uniform(longest / 2, longest)


class Retry:
    """Counts failures, and waits between attempts until their number or the time is exhausted."""

    def __init__(
        self, patience: Patience, deadline: float, note: Callable[[str], None], sleep: Callable[[float], None]
    ) -> None:
        self._patience = patience
        self._deadline = deadline
        self._note = note
        self._sleep = sleep
        self._failures = 0

    def progressed(self) -> None:
        """Reset the count: data has arrived."""
        self._failures = 0

    def failed(self, error: TransientError) -> None:
        """Wait before the next attempt; FetchError if there is none."""
        self._failures += 1
        kind = HubUnreachableError if isinstance(error, NoConnectionError) else FetchError
        if self._failures >= self._patience.attempts:
            raise kind(f"{error}; given up after {self._failures} attempts") from error
        wait = self._patience.wait_s(self._failures) if error.wait_s is None else error.wait_s
        if wait > self._patience.longest_asked_s:
            raise kind(f"{error}; the hub asks to wait {wait:.0f} s") from error
        if time.monotonic() + wait > self._deadline:
            raise kind(f"{error}; the time limit leaves no room for another attempt") from error
        self._note(f"{error}; trying again in {wait:.1f} s")
        self._sleep(wait)


class Hub:
    """A connection to the hub. Redirects are followed; the token goes to the hub itself only."""

    def __init__(
        self,
        base: str,
        *,
        token: str | None,
        deadline: float,
        note: Callable[[str], None],
        patience: Patience | None = None,
        timeout_s: float = 30.0,
        connect_s: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; the connection is made by the first request.

        Args:
            base: address of the hub.
            token: for repositories that are not public.
            deadline: on the clock ``time.monotonic``.
            note: receives a line for every failure that is tried again.
            patience: with failures.
            timeout_s: longest silence of the hub.
            connect_s: longest wait for a connection.
            sleep: waits.
        """
        headers = {"User-Agent": "parley-fetch"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.client = httpx.Client(
            base_url=base,
            headers=headers,
            follow_redirects=True,
            timeout=httpx.Timeout(timeout_s, connect=connect_s),
        )
        self.base = base
        """Address of the hub."""
        self.deadline = deadline
        self._note = note
        self._patience = patience or Patience()
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.client.close()

    def unreachable(self, error: httpx.TransportError) -> NoConnectionError:
        """The error for a connection that failed or broke."""
        return NoConnectionError(
            f"no connection to {self.base} ({type(error).__name__}: {error}); "
            f"another address of the hub can be given in {' or '.join(BASE_VARIABLES)}"
        )

    def retry(self) -> Retry:
        """A new count of attempts."""
        return Retry(self._patience, self.deadline, self._note, self._sleep)

    def check_reachable(self, address: str) -> None:
        """Send one HEAD request; HubUnreachableError if there is no response."""
        try:
            self.client.head(address)
        except httpx.TransportError as error:
            raise HubUnreachableError(str(self.unreachable(error))) from error

    def snapshot(self, weights: Published) -> Snapshot:
        """The present files of an entry of the manifest.

        Raises:
            FetchError: the repository is missing, closed, or lacks such files.
        """
        try:
            commit, files = self._list(weights)
        except (KeyError, TypeError, AttributeError) as error:
            raise FetchError(
                f"the hub's answer about {weights.repository} cannot be understood; "
                f"is {BASE_VARIABLES[0]} right?"
            ) from error
        chosen = tuple(
            file for file in files if any(fnmatch.fnmatchcase(file.name, glob) for glob in weights.include)
        )
        missing = [
            glob
            for glob in weights.include
            if not any(fnmatch.fnmatchcase(file.name, glob) for file in chosen)
        ]
        if missing:
            raise FetchError(f"{weights.repository} has no {', '.join(missing)} at {commit}")
        return Snapshot(weights.repository, commit, chosen)

    def _list(self, weights: Published) -> tuple[str, list[RemoteFile]]:
        """The commit, and all files of it."""
        repository = f"/api/models/{weights.repository}"
        revision, _ = self._json(f"{repository}/revision/{weights.revision}")
        commit = str(revision["sha"])
        files: list[RemoteFile] = []
        page = f"{repository}/tree/{commit}?recursive=true"
        for _ in range(_PAGES):
            answer, following = self._json(page)
            listed = [_remote_file(entry) for entry in answer if entry.get("type") == "file"]
            files += [file for file in listed if not _is_reserved(file.name)]
            if following is None:
                return commit, files
            page = following
        raise FetchError(f"{weights.repository} lists its files on more than {_PAGES} pages")

    def _json(self, address: str) -> tuple[Any, str | None]:
        """The parsed response, and the address of the next page."""
        retry = self.retry()
        while True:
            try:
                with self.client.stream("GET", address) as response:
                    check(response)
                    answer = json.loads(self._body(response))
            except TransientError as error:
                retry.failed(error)
            except httpx.TransportError as error:
                retry.failed(self.unreachable(error))
            except (ValueError, RecursionError, httpx.DecodingError) as error:
                retry.failed(TransientError(f"{self.base} does not answer properly: {error!r}"))
            else:
                return answer, response.links.get("next", {}).get("url")

    def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for block in response.iter_bytes():
            body += block
            if len(body) > _LONGEST_ANSWER:
                raise FetchError(f"{self.base} answers with more than {_LONGEST_ANSWER} bytes")
            if time.monotonic() > self.deadline:
                raise FetchError(f"the time limit is over; {self.base} has not come to the end of its answer")
        return bytes(body)


def check(response: httpx.Response) -> None:
    """Raise for a response without success.

    Raises:
        TransientError: another attempt may succeed.
        FetchError: it would fail too.
    """
    if response.is_success:
        return
    where = f"{response.request.url.path} on the hub"
    if response.status_code in _TRANSIENT:
        raise TransientError(f"status {response.status_code} for {where}", _retry_after(response))
    if response.status_code in (401, 403):
        raise FetchError(
            f"the hub refuses {where} (status {response.status_code}): accept the model's licence there, "
            f"then set {TOKEN_VARIABLE}"
        )
    if response.status_code == 404:
        raise FetchError(f"there is no {where}; is {BASE_VARIABLES[0]} right?")
    raise FetchError(f"status {response.status_code} for {where}")


def _retry_after(response: httpx.Response) -> float | None:
    """The wait that the hub demands, in seconds or until a date."""
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _is_reserved(name: str) -> bool:
    """Whether a file could be taken for one that a download itself writes into the folder."""
    return name.endswith(PART) or any(part.startswith(".") for part in name.split("/"))


def _remote_file(entry: dict[str, Any]) -> RemoteFile:
    large = entry.get("lfs")
    if large:
        return RemoteFile(check_name(entry["path"]), int(large["size"]), sha256=large["oid"])
    return RemoteFile(check_name(entry["path"]), int(entry["size"]), git_blob=entry["oid"])


def resolve_path(repository: str, commit: str, path: str) -> str:
    """The hub's path of a file of a commit."""
    return f"/{repository}/resolve/{quote(commit)}/{quote(path)}"


def part_of(target: Path) -> Path:
    """The incomplete download of a file, next to it."""
    return target.with_name(target.name + PART)


def download(hub: Hub, address: str, file: RemoteFile, folder: Path, arrived: Callable[[int], None]) -> bool:
    """Download ``file`` into ``folder``; False if it was there already, with its checksum.

    An interrupted download stays in a file next to it and is resumed.

    Args:
        hub: the connection.
        address: of the file on the hub.
        file: size and checksum.
        folder: of the result.
        arrived: receives the present length of the file.

    Raises:
        FetchError: it is not available, or its content is wrong.
    """
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size and matches(target, file):
        arrived(file.size)
        return False
    part = part_of(target)
    part.parent.mkdir(parents=True, exist_ok=True)
    if part.is_symlink() or length(part) > file.size:  # put there by others, or of another version
        part.unlink()
    for _ in range(_FULL_ATTEMPTS):
        fill(hub, address, file, part, arrived)
        if matches(part, file):
            complete(part, target)
            return True
        part.unlink()
    raise WrongContentError(
        f"{file.name} has a wrong checksum, twice: the hub or the way to it is not to be trusted"
    )


def matches(path: Path, file: RemoteFile) -> bool:
    """Whether a file has the announced checksum."""
    if file.sha256 is not None:
        digest, expected = hashlib.sha256(), file.sha256
    else:
        # The way in which git names a file's content.
        digest, expected = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False), file.git_blob or ""
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest() == expected


def complete(part: Path, target: Path) -> None:
    """Rename a complete file; its content is on the disk before, so that it survives a power failure."""
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    part.replace(target)


def fill(hub: Hub, address: str, file: RemoteFile, part: Path, arrived: Callable[[int], None]) -> None:
    """Append to ``part`` until it is as long as the file.

    Args:
        hub: the connection.
        address: of the file on the hub.
        file: with its size.
        part: the incomplete file.
        arrived: receives the present length of the file.

    Raises:
        FetchError: it is not available.
    """
    retry = hub.retry()
    while (there := length(part)) < file.size or not part.exists():
        if time.monotonic() > hub.deadline:
            raise FetchError(f"the time limit is over; run this again to go on with {file.name}")
        try:
            _request(hub, address, file, part, arrived)
        except TransientError as error:
            if length(part) > there:
                retry.progressed()
            retry.failed(error)
        except httpx.TransportError as error:
            if length(part) > there:
                retry.progressed()
            retry.failed(hub.unreachable(error))
    if there > file.size:
        part.unlink()
        raise WrongContentError(f"{file.name} is longer than the {file.size} bytes that were announced")


def open_part(part: Path, mode: str) -> IO[bytes]:
    """Open an incomplete file to write to it, not through a link.

    Raises:
        OSError: it is a link, or cannot be written.
    """
    return open(part, mode, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666))


def length(part: Path) -> int:
    """Size of a file in bytes; 0 if it is absent."""
    return part.stat().st_size if part.exists() else 0


def _request(hub: Hub, address: str, file: RemoteFile, part: Path, arrived: Callable[[int], None]) -> None:
    there = length(part)
    headers = {"Accept-Encoding": "identity"}
    if there:
        headers["Range"] = f"bytes={there}-"
    with hub.client.stream("GET", address, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
            raise TransientError("the hub rejects the offset to resume at")
        check(response)
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {there}-"):
            part.unlink(missing_ok=True)
            raise TransientError("the hub resumed at another offset than requested")
        # A hub that ignores the range sends the file from its beginning.
        with open_part(part, "ab" if resumed else "wb") as output:
            for block in response.iter_raw():  # as it comes: what waits in a buffer would be lost
                output.write(block)
                arrived(output.tell())
                if output.tell() > file.size:
                    return
                if time.monotonic() > hub.deadline:
                    return
    if length(part) < file.size:
        raise TransientError(f"the connection ended after {length(part)} of {file.size} bytes")

"""A model hub: what is in a repository, and its files."""

from __future__ import annotations

import email.utils
import fnmatch
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from fetching.manifest import FetchError, Published, RemoteFile, Snapshot, check_name

BASE_VARIABLES = ("PARLEY_MODEL_HUB", "HF_ENDPOINT")
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of a variable
_PAGES = 50
_LONGEST_ANSWER = 16 << 20
"""Bytes of a listing's page; one of a thousand files has 300 kB."""
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}


def base_address(environment: Mapping[str, str] = os.environ) -> str:
    """The hub's address: from the environment, else what the package ``huggingface_hub`` knows."""
    for variable in BASE_VARIABLES:
        if environment.get(variable):
            return environment[variable].rstrip("/")
    from huggingface_hub import constants  # noqa: PLC0415 - slow, and needed here only

    return str(constants.ENDPOINT).rstrip("/")


class TransientError(Exception):
    """Trying again may help.

    Args:
        reason: what happened.
        wait_s: how long the hub asks to wait (seconds).
    """

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class NoConnectionError(TransientError):
    """Nothing answers at the hub's address, or not in time."""


class HubUnreachableError(FetchError):
    """The hub could not be reached, so that another file of it needs no attempt."""


@dataclass(frozen=True)
class Patience:
    """How often and how long to try."""

    attempts: int = 6
    """Failures in a row; a piece of the file that arrives starts the count anew."""
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = math.inf
    """A longer wait that the hub asks for is not begun."""

    def wait_s(self, failures: int) -> float:
        """Seconds before the next attempt: exponential, with jitter."""
        longest = min(self.longest_s, self.first_s * 2.0 ** (failures - 1))
        return random.uniform(longest / 2, longest)


class Retry:
    """Counts failures, and waits between attempts until patience or time runs out."""

    def __init__(
        self, patience: Patience, deadline: float, note: Callable[[str], None], sleep: Callable[[float], None]
    ) -> None:
        self._patience = patience
        self._deadline = deadline
        self._note = note
        self._sleep = sleep
        self._failures = 0

    def progressed(self) -> None:
        """Something arrived."""
        self._failures = 0

    def failed(self, error: TransientError) -> None:
        """Wait before the next attempt.

        Raises:
            FetchError: it is not worth another attempt.
        """
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
        """Connect when needed.

        Args:
            base: address of the hub.
            token: for repositories that are not public.
            deadline: when to give up, on the clock ``time.monotonic``.
            note: tells what goes wrong and is tried again.
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
        """What a connection that was not made or broke means to a person."""
        return NoConnectionError(
            f"no connection to {self.base} ({type(error).__name__}: {error}); "
            f"another address of the hub can be given in {' or '.join(BASE_VARIABLES)}"
        )

    def retry(self) -> Retry:
        """Patience for one task."""
        return Retry(self._patience, self.deadline, self._note, self._sleep)

    def greet(self, address: str) -> None:
        """See whether the hub answers at all, with one request that brings nothing.

        Raises:
            HubUnreachableError: it does not.
        """
        try:
            self.client.head(address)
        except httpx.TransportError as error:
            raise HubUnreachableError(str(self.unreachable(error))) from error

    def snapshot(self, weights: Published) -> Snapshot:
        """What the hub has now of an entry of the manifest.

        Raises:
            FetchError: the repository is missing, closed, or has no such files.
        """
        try:
            commit, files = self._list(weights)
        except (KeyError, TypeError, AttributeError) as error:
            raise FetchError(
                f"what the hub says of {weights.repository} cannot be understood; "
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
        return Snapshot(commit, chosen)

    def _list(self, weights: Published) -> tuple[str, list[RemoteFile]]:
        """The commit, and all files of it."""
        repository = f"/api/models/{weights.repository}"
        revision, _ = self._json(f"{repository}/revision/{weights.revision}")
        commit = str(revision["sha"])
        files: list[RemoteFile] = []
        page = f"{repository}/tree/{commit}?recursive=true"
        for _ in range(_PAGES):
            answer, following = self._json(page)
            files += [_remote_file(entry) for entry in answer if entry.get("type") == "file"]
            if following is None:
                return commit, files
            page = following
        raise FetchError(f"{weights.repository} lists its files on more than {_PAGES} pages")

    def _json(self, address: str) -> tuple[Any, str | None]:
        """What the hub answers, and the address of the next page."""
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
    """Tell what will pass by itself from what will not.

    Raises:
        TransientError: try again.
        FetchError: do not.
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
    """How long the hub asks to wait: seconds, or until a date."""
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _remote_file(entry: dict[str, Any]) -> RemoteFile:
    large = entry.get("lfs")
    if large:
        return RemoteFile(check_name(entry["path"]), int(large["size"]), sha256=large["oid"])
    return RemoteFile(check_name(entry["path"]), int(entry["size"]), git_blob=entry["oid"])

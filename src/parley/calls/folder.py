"""The folder of recorded calls: a folder for each, and a list of them in SQLite."""

from __future__ import annotations

import errno
import hmac
import logging
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from parley.calls.store import CallStore, OpenFile
from parley.checkpoint import DecidedState, SessionState
from parley.errors import CallNotFoundError
from parley.protocol import Transfer

DEFAULT_FOLDER = "calls"
"""Beside the model repository."""
EVENTS, AUDIO, INFO = "events.jsonl", "audio.wav", "call.json"
"""Names of the files of a call."""
_LIST = "calls.sqlite3"
_CALL = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{16}")
_ENTRY = re.compile(rf"{_CALL.pattern}(\.[0-9]{{1,4}})?")
_LAST_PART = 9999
"""Of four digits, as in :data:`_ENTRY`: an entry that it does not match would never be deleted."""
LEAST_FREE = 512 * 1024 * 1024
"""Bytes that recordings leave free on their disk."""
MAX_SPOOL = 16 * 1024 * 1024 * 1024
"""Bytes that wait for an object store; beyond them recordings end, and none begins."""
_BUSY_S = 5.0
_SCHEMA = """CREATE TABLE IF NOT EXISTS calls (
id TEXT PRIMARY KEY, agent TEXT NOT NULL, started TEXT NOT NULL, delete_at TEXT NOT NULL, info BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS keys (id INTEGER PRIMARY KEY, key BLOB NOT NULL);
"""
_log = logging.getLogger(__name__)


class CallInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the list says of one call; a call that has moved has an entry for each part."""

    id: str = ""
    """Name of the entry. Empty: nothing of the call is kept."""
    call: str
    """The same for all parts of a call."""
    part: int = 1
    """2 and more: a call that went on here, or in another session, after a move."""
    agent: str
    owner: str = ""
    """Of :class:`parley.protocol.Start`."""
    session: str
    language: str = ""
    started: str
    """UTC, ISO 8601; the next one likewise."""
    delete_at: str = ""
    ended: bool = False
    """False: the call goes on, or its server has not ended it."""
    reason: str = ""
    """Of :class:`parley.protocol.Closed`, as the next two."""
    agent_reason: str = ""
    transfer: Transfer | None = None
    may_continue: bool = False
    """Whether the client can go on with the call in another session: then another part may follow."""
    duration_ms: int = 0
    turns: int = 0
    """Turns of the agent."""
    step: str = ""
    collected: dict[str, str] = {}
    decisions: dict[str, DecidedState] = {}
    incomplete: str = ""
    """Why a part of the recording is missing: ``limit``, ``disk`` or ``late``. Empty: it is complete."""


class CallScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls of a folder are to be seen; the others are treated as if there were none."""

    owner: str | None = None
    """Of calls that have this owner only, and none if it is empty. None: of all."""
    agents: frozenset[str] | None = None
    """Calls of these agents. None: of all."""

    @property
    def values(self) -> tuple[str | None, str | None]:
        """What :data:`_SEEN` compares."""
        agents = None if self.agents is None else msgspec.json.encode(self.agents).decode()
        return self.owner, agents


_SEEN = (
    "(?1 IS NULL OR json_extract(CAST(info AS TEXT), '$.owner') = ?1)"
    " AND (?2 IS NULL OR agent IN (SELECT value FROM json_each(?2)))"
)
ALL_CALLS = CallScope()


def make_call_id(now: datetime) -> str:
    """The id of a call that begins."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(8)}"


def is_call_id(text: str) -> bool:
    """Whether a text has the form of a call's id; those of other servers come through clients."""
    return _CALL.fullmatch(text) is not None


class CallFolder:
    """The calls of one folder. Several servers may share it on one machine.

    All methods wait for the disk, and raise ``OSError`` or ``sqlite3.Error`` where that fails. Only the owner
    of the folder can read it and its files.
    """

    def __init__(self, path: Path, store: CallStore | None = None) -> None:
        self.path = path
        self.store = store
        self.spool_bytes = 0
        """With a store: of the files that waited for it when :meth:`upload_finished` was called last."""
        self._key = secrets.token_bytes(32)

    def seal(self, call: str, agent: str) -> str:
        """A text that only servers of this folder can make: the call is recorded, and has announced it."""
        return hmac.digest(self._key, f"{call} {agent}".encode(), "sha256").hex()

    def has_sealed(self, state: SessionState, agent: str) -> bool:
        """Whether a session that goes on need not announce again that it is recorded.

        The state comes from a client, which could name any call. The folder is not read here.
        """
        return hmac.compare_digest(self.seal(state.call, agent).encode(), state.call_seal.encode())

    def begin(self, info: CallInfo) -> CallInfo:
        """Make the folder of a call, and add it to the list."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.has_room():
            raise OSError(errno.ENOSPC, "there is no room for recordings", str(self.path))
        (self.path / _LIST).touch(0o600)
        for part in range(info.part, _LAST_PART + 1):
            name = info.call if part == 1 else f"{info.call}.{part}"
            try:
                (self.path / name).mkdir(mode=0o700)
            except FileExistsError:  # the part of another session that went on from the same checkpoint
                continue
            info = msgspec.structs.replace(info, id=name, part=part)
            row = (name, info.agent, info.started, info.delete_at, msgspec.json.encode(info))
            try:
                self._query("INSERT INTO calls VALUES (?, ?, ?, ?, ?)", *row)
            except BaseException as error:
                (self.path / name).rmdir()
                if isinstance(error, sqlite3.IntegrityError):  # the files of that part are in the store
                    continue
                raise
            return info
        raise FileExistsError(f"{self.path / info.call}: too many parts")

    def finish(self, info: CallInfo) -> None:
        """Complete a call: its file :data:`INFO` appears as a whole."""
        folder = self.path / info.id
        temporary = folder / f"{INFO}.part"
        with open_private(temporary) as file:
            file.write(msgspec.json.format(msgspec.json.encode(info), indent=2))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / INFO)
        # A call that was deleted meanwhile does not come back.
        self._query("UPDATE calls SET info = ? WHERE id = ?", msgspec.json.encode(info), info.id)

    def list(
        self,
        agent: str = "",
        limit: int = -1,
        scope: CallScope = ALL_CALLS,
        before: tuple[str, str] = ("", ""),
    ) -> list[CallInfo]:
        """The calls, newest first; of one agent, if it is named.

        ``before``: time and id of a call, whether it still exists or not; only earlier ones are listed.
        """
        query = f"""SELECT info FROM calls
        WHERE {_SEEN} AND ?3 IN ('', agent) AND (?4 = '' OR (started, id) < (?4, ?5))
        ORDER BY started DESC, id DESC LIMIT ?6"""  # noqa: S608 - a constant
        return [*self._query(query, *scope.values, agent, *before, limit)]

    def find(self, entry: str, scope: CallScope = ALL_CALLS) -> tuple[CallInfo, Path]:
        """What the list says of an entry, and its folder.

        Raises:
            CallNotFoundError: there is none of this id.
        """
        info, folder = self._info(entry, scope), self.path / entry
        if not folder.is_dir():
            raise CallNotFoundError(f"the files of the call {entry} are not in {self.path}")
        return info, folder

    @contextmanager
    def open(
        self, entry: str, scope: CallScope = ALL_CALLS, name: str = ""
    ) -> Iterator[tuple[CallInfo, Path]]:
        """As :meth:`find`, with a copy of the files, or of the named one, if they are in the store."""
        info = self._info(entry, scope)
        if self.store is None or (self.path / info.id).is_dir():
            yield self.find(entry, scope)
            return
        with TemporaryDirectory() as copies:
            self.store.download(entry, Path(copies), name)
            yield info, Path(copies)

    def open_file(self, entry: str, name: str, scope: CallScope = ALL_CALLS) -> tuple[OpenFile, int]:
        """A file of an entry, here or in the store, and its size.

        Raises:
            CallNotFoundError: there is no such entry.
            FileNotFoundError: it has no such file.
        """
        path = self.path / self._info(entry, scope).id / name
        if self.store is None or path.exists():
            return path.open("rb"), path.stat().st_size
        file = self.store.open(entry, name)
        return file, file.size

    def delete(self, entry: str, scope: CallScope = ALL_CALLS) -> None:
        """Delete an entry, first its files and then its line in the list.

        Raises:
            CallNotFoundError: there is none of this id.
        """
        self._remove(self._info(entry, scope))

    def delete_due(self, now: datetime) -> int:
        """Delete the calls whose time is over; returns how many they were."""
        count = 0
        for info in self._query("SELECT info FROM calls WHERE delete_at <= ?", to_iso(now)):
            try:
                self._remove(info)
                count += 1
            except OSError as error:
                _log.exception("the call %s, whose time is over, cannot be deleted", info.id)
                if self.store is not None and error.errno is None:  # the store's: each would wait for it
                    break
        return count

    def has_room(self) -> bool:
        """Whether recordings leave :data:`LEAST_FREE` on their disk, and those for a store have room."""
        return shutil.disk_usage(self.path).free >= LEAST_FREE and self.spool_bytes <= MAX_SPOOL

    def upload_finished(self) -> None:
        """Move the files of finished calls into the store. What is left because it failed is moved later.

        Raises:
            OSError: the store failed.
        """
        if self.store is None:
            return
        self._measure()
        for folder in sorted(path.parent for path in self.path.glob(f"*/{INFO}")):
            try:
                self.store.upload(folder)
                shutil.rmtree(folder, ignore_errors=True)
            except FileNotFoundError:
                if folder.exists():  # there is no such bucket; else it was deleted, or another server's
                    raise
            finally:
                try:
                    self._info(folder.name)
                except CallNotFoundError:  # it was deleted meanwhile
                    self.store.delete(folder.name)
        self._measure()

    def _measure(self) -> None:
        size = 0
        for path in self.path.glob("*/*"):
            with suppress(FileNotFoundError):
                size += path.stat().st_size if (path.parent / INFO).exists() else 0
        self.spool_bytes = size

    def _info(self, entry: str, scope: CallScope = ALL_CALLS) -> CallInfo:
        if _ENTRY.fullmatch(entry):
            query = f"SELECT info FROM calls WHERE {_SEEN} AND id = ?3"  # noqa: S608 - a constant
            for info in self._query(query, *scope.values, entry):
                return info
        raise CallNotFoundError(f"there is no call {entry[:80]!r} in {self.path}")

    def _remove(self, info: CallInfo) -> None:
        with suppress(FileNotFoundError):  # an upload may remove it as well
            shutil.rmtree(self.path / info.id)
        if self.store is not None:
            self.store.delete(info.id)
        self._query("DELETE FROM calls WHERE id = ?", info.id)
        if self.store is not None:  # an upload may have found the line for the last time
            self.store.delete(info.id)

    def _query(self, query: str, *values: str | int | bytes | None) -> Sequence[CallInfo]:
        if not (path := self.path / _LIST).exists():
            return []
        # Each use has its own connection: threads differ, and a process may be ended at any time.
        with closing(sqlite3.connect(path, timeout=_BUSY_S)) as connection, connection:
            connection.executescript(_SCHEMA)
            if (found := connection.execute("SELECT key FROM keys").fetchone()) is None:
                connection.execute("INSERT OR IGNORE INTO keys VALUES (1, ?)", (self._key,))
                found = connection.execute("SELECT key FROM keys").fetchone()
            (self._key,) = found  # who only reads the list needs no right to write it
            rows = connection.execute(query, values).fetchall()
        return [msgspec.json.decode(row[0], type=CallInfo) for row in rows]


def open_calls(folder: Path) -> CallFolder:
    """The calls of a folder, and of the store that the variable of the server's setting names."""
    url = os.environ.get("PARLEY_VOICE_AGENT_CALLS_STORE")
    return CallFolder(folder, CallStore(url) if url else None)


def open_private(path: Path) -> BufferedWriter:
    """A new file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


def to_iso(moment: datetime) -> str:
    """UTC in ISO 8601, in a form that sorts by time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

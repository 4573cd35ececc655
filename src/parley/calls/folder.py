"""The folder of recorded calls: a folder for each, and their list."""

from __future__ import annotations

import errno
import hmac
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from io import BufferedWriter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from parley.calls.database import ALL_CALLS, TABLES, CallDatabase, CallInfo, CallScope, ask_sqlite
from parley.calls.store import CallStore, OpenFile
from parley.checkpoint import SessionState
from parley.errors import CallNotFoundError, ModelLoadingError

DEFAULT_FOLDER = "calls"
"""Beside the model repository."""
EVENTS, AUDIO, INFO = "events.jsonl", "audio.wav", "call.json"
"""Names of the files of a call."""
_LIST = "calls.sqlite3"
_UNLISTED = "unlisted"
"""In the folder of a call that the list did not take when it began: what was to be added."""
_CALL = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{16}")
_ENTRY = re.compile(rf"{_CALL.pattern}(\.[0-9]{{1,4}})?")
_LAST_PART = 9999
"""Of four digits, as in :data:`_ENTRY`: an entry that it does not match would never be deleted."""
LEAST_FREE = 512 * 1024 * 1024
"""Bytes that recordings leave free on their disk."""
MAX_SPOOL = 16 * 1024 * 1024 * 1024
"""Bytes that wait for an object store; beyond them recordings end, and none begins."""
_LOST_S = 86_400.0
"""After this time the server of a call that has not ended was killed: no recording is so long."""
_log = logging.getLogger(__name__)


def make_call_id(now: datetime) -> str:
    """The id of a call that begins."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(8)}"


def is_call_id(text: str) -> bool:
    """Whether a text has the form of a call's id; those of other servers come through clients."""
    return _CALL.fullmatch(text) is not None


class CallFolder:
    """The calls of one folder. Several servers may share it on one machine.

    All methods wait for the disk and the list, and raise ``OSError`` where one fails. Only the owner of the
    folder can read it and its files.

    Args:
        path: of the folder.
        store: where the files of ended calls go; None: they stay. A call that the list does not take is
            listed when they do.
        entries: the list; None: it is in the folder.
    """

    def __init__(
        self, path: Path, store: CallStore | None = None, entries: CallDatabase | None = None
    ) -> None:
        self.path = path
        self.store = store
        self._own_list = None if entries else path / _LIST
        self.entries = entries or CallDatabase(partial(ask_sqlite, path / _LIST))
        self.spool_bytes = 0
        """With a store: of the files that waited for it when :meth:`upload_finished` was called last."""

    def seal(self, call: str, agent: str) -> str:
        """A text that only servers of this list can make: the call is recorded, and has announced it."""
        return hmac.digest(self.entries.key, f"{call} {agent}".encode(), "sha256").hex()

    def has_sealed(self, state: SessionState, agent: str) -> bool:
        """Whether a session that goes on need not announce again that it is recorded.

        The state comes from a client, which could name any call. The list is not read here.
        """
        return hmac.compare_digest(self.seal(state.call, agent).encode(), state.call_seal.encode())

    def begin(self, info: CallInfo) -> CallInfo:
        """Make the folder of a call, and add it to the list."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.has_room():
            raise OSError(errno.ENOSPC, "there is no room for recordings", str(self.path))
        if self._own_list is not None:
            self._own_list.touch(0o600)
        for part in range(info.part, _LAST_PART + 1):
            name = info.call if part == 1 else f"{info.call}.{part}"
            try:
                (self.path / name).mkdir(mode=0o700)
            except FileExistsError:  # the part of another session that went on from the same checkpoint
                continue
            info = msgspec.structs.replace(info, id=name, part=part)
            try:
                if self.entries.add(info):
                    return info
            except OSError as error:
                if self.store is not None:
                    _log.error("the call %s is listed when its files are moved: %s", name, error)
                    return self._list_later(info)
                (self.path / name).rmdir()
                raise
            (self.path / name).rmdir()  # the files of that part are elsewhere
        raise FileExistsError(f"{self.path / info.call}: too many parts")

    def _list_later(self, info: CallInfo) -> CallInfo:
        folder = self.path / info.id
        if info.part > 1:  # meanwhile another server may list a part of this name
            info = msgspec.structs.replace(info, id=make_call_id(datetime.now(UTC)))
            folder = folder.rename(self.path / info.id)
        with open_private(folder / _UNLISTED) as file:
            file.write(msgspec.json.encode(info))
        return info

    def finish(self, info: CallInfo) -> None:
        """Complete a call: its file :data:`INFO` appears as a whole."""
        folder = self.path / info.id
        temporary = folder / f"{INFO}.part"
        with open_private(temporary) as file:
            file.write(msgspec.json.format(msgspec.json.encode(info), indent=2))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / INFO)
        try:
            self.entries.update(info)
        except OSError as error:
            if self.store is None:
                raise
            _log.error("the end of the call %s is listed when its files are moved: %s", info.id, error)

    @contextmanager
    def open(
        self, entry: str, scope: CallScope = ALL_CALLS, name: str = ""
    ) -> Iterator[tuple[CallInfo, Path]]:
        """What the list says of an entry, and a folder with its files, or only the named one.

        Raises:
            CallNotFoundError: there is none of this id, or its files are gone.
        """
        info, folder = self._info(entry, scope), self.path / entry
        if folder.is_dir():
            yield info, folder
        elif self.store is None:
            raise CallNotFoundError(f"the files of the call {entry} are not in {self.path}")
        else:
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
        self._remove(self._info(entry, scope).id)

    def delete_due(self, now: datetime) -> int:
        """Delete the calls whose time is over; returns how many they were."""
        count = 0
        for info in self.entries.newest(due=to_iso(now)):
            try:
                count += self._remove(info.id)
            except OSError as error:
                _log.exception("the call %s, whose time is over, cannot be deleted", info.id)
                if error.errno is None:  # of the store or the list: each would wait for it
                    break
        if count:
            _log.info("%d recorded calls were deleted: their time was over", count)
        return count

    def has_room(self) -> bool:
        """Whether recordings leave :data:`LEAST_FREE` on their disk, and those for a store have room."""
        return shutil.disk_usage(self.path).free >= LEAST_FREE and self.spool_bytes <= MAX_SPOOL

    def upload_finished(self) -> None:
        """Move the files of finished calls into the store. What is left because it failed is moved later.

        Raises:
            OSError: the list or the store failed.
        """
        if self.store is None:
            return
        self._measure()
        if self._own_list is None:  # there may be one of before servers shared theirs
            for info in CallDatabase(partial(ask_sqlite, self.path / _LIST)).newest():
                self.entries.add(info)
            (self.path / _LIST).unlink(missing_ok=True)
        for folder in filter(_is_over, sorted(self.path.glob("*/"))):
            try:
                self._list_again(folder)
                self.store.upload(folder)
            except FileNotFoundError:
                if folder.exists():  # there is no such bucket; else it was deleted, or another server's
                    raise
            finally:
                if self.entries.find(folder.name) is None:  # it was deleted meanwhile
                    self.store.delete(folder.name)
            shutil.rmtree(folder, ignore_errors=True)
        self._measure()

    def _list_again(self, folder: Path) -> None:
        """Have the list say what the folder of a call says, if that says more."""
        begun, ended = folder / _UNLISTED, folder / INFO
        with suppress(FileNotFoundError):
            source = ended if ended.exists() else begun
            info = msgspec.json.decode(source.read_bytes(), type=CallInfo)
            if begun.exists():
                self.entries.add(info, replace=True)
                begun.unlink()
            else:
                self.entries.update(info)

    def _measure(self) -> None:
        size = 0
        for path in self.path.glob("*/*"):
            with suppress(FileNotFoundError):
                size += path.stat().st_size if (path.parent / INFO).exists() else 0
        self.spool_bytes = size

    def _info(self, entry: str, scope: CallScope) -> CallInfo:
        if _ENTRY.fullmatch(entry) and (info := self.entries.find(entry, scope)) is not None:
            return info
        raise CallNotFoundError(f"there is no call {entry[:80]!r} in {self.path}")

    def _remove(self, entry: str) -> bool:
        """Delete an entry; returns whether no other server has done so meanwhile."""
        with suppress(FileNotFoundError):  # an upload may remove it as well
            shutil.rmtree(self.path / entry)
        if self.store is not None:
            self.store.delete(entry)
        is_removed = self.entries.remove(entry)
        if self.store is not None:  # an upload may have found the line for the last time
            self.store.delete(entry)
        return is_removed


def _is_over(folder: Path) -> bool:
    """Whether a call has ended, or its server has not ended it."""
    try:
        is_lost = folder.stat().st_mtime < time.time() - _LOST_S and _ENTRY.fullmatch(folder.name)
        return bool(is_lost) or (folder / INFO).exists()
    except FileNotFoundError:
        return False


def open_calls(folder: Path, store: str | None = None, shared_list: str | None = None) -> CallFolder:
    """The calls of a folder, with the settings ``calls_store`` and ``calls_list``.

    Those that are None come from the environment, as for a server.

    Raises:
        ModelLoadingError: they cannot be used.
    """
    store = os.environ.get("PARLEY_VOICE_AGENT_CALLS_STORE") if store is None else store
    shared_list = os.environ.get("PARLEY_VOICE_AGENT_CALLS_LIST") if shared_list is None else shared_list
    if not shared_list:
        return CallFolder(folder, CallStore(store) if store else None)
    if not store:
        raise ModelLoadingError("calls_list needs calls_store: other servers cannot read files in a folder")
    try:
        from parley.runtime.postgres import SharedTables  # noqa: PLC0415 - few servers need its client
    except ImportError as error:
        raise ModelLoadingError("calls_list needs the package psycopg: pip install '.[agent]'") from error
    # Times and ids compare by their characters.
    tables = SharedTables("calls_list", shared_list, TABLES.format(text='text COLLATE "C"', bytes="bytea"))
    return CallFolder(folder, CallStore(store), CallDatabase(tables.ask))


def open_private(path: Path) -> BufferedWriter:
    """A new file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


def to_iso(moment: datetime) -> str:
    """UTC in ISO 8601, in a form that sorts by time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

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
from collections.abc import Callable, Iterable, Iterator
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
"""In the folder of a call that its list has not taken: what is to be added."""
_MARK = ".list"
"""In the folder of a call of a list that servers share: which list. Empty: that was away from the start."""
_CALL = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{16}")
_ENTRY = re.compile(rf"{_CALL.pattern}(\.[0-9]{{1,4}})?")
_LAST_PART = 9999
"""Of four digits, as in :data:`_ENTRY`: an entry that it does not match would never be deleted."""
LEAST_FREE = 512 * 1024 * 1024
"""Bytes that recordings leave free on their disk."""
MAX_SPOOL = 16 * 1024 * 1024 * 1024
"""Bytes that wait for an object store; beyond them recordings end, and none begins."""
_JOINED_AT_ONCE = 500
"""Entries of the list in the folder that the servers' list takes over with one statement."""
_LOST_S = 86_400.0
"""A call that has not ended, and of which nothing was written for so long: its server was killed."""
_REFUSED_S = 3_600.0
"""After which a call that was refused is tried again."""
_log = logging.getLogger(__name__)


def make_call_id(now: datetime) -> str:
    """The id of a call that begins."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(8)}"


def is_call_id(text: str) -> bool:
    """Whether a text has the form of a call's id; those of other servers come through clients."""
    return _CALL.fullmatch(text) is not None


class CallFilesMissingError(CallNotFoundError):
    """A call is listed, and its files are gone, or still with its server."""


class CallFolder:
    """The calls of one folder. Several servers may share it on one machine.

    All methods wait for the disk and the list, and raise ``OSError`` where one fails. Only the owner of the
    folder can read it and its files.

    Args:
        path: of the folder.
        store: where the files of ended calls go; None: they stay.
        entries: the list; None: it is in the folder. With a store calls are added to it by
            :meth:`upload_finished` only, because recordings do not wait for a database.
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
        self.refused: dict[str, float] = {}
        """Entries that the store or the list has refused, and when they are tried again (monotonic time)."""

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
            if self._lists_later and part > 1:  # another server may list a part of that name
                name = make_call_id(datetime.now(UTC))
            try:
                (self.path / name).mkdir(mode=0o700)
            except FileExistsError:  # the part of another session that went on from the same checkpoint
                continue
            info = msgspec.structs.replace(info, id=name, part=part)
            try:
                if self._lists_later:
                    self._mark(self.path / name)
                    _write_whole(self.path / name / _UNLISTED, msgspec.json.encode(info))
                    return info
                if self.entries.add(info):
                    return info
            except BaseException:
                shutil.rmtree(self.path / name, ignore_errors=True)
                raise
            (self.path / name).rmdir()  # the files of that part are elsewhere
        raise FileExistsError(f"{self.path / info.call}: too many parts")

    @property
    def _lists_later(self) -> bool:
        return self._own_list is None and self.store is not None

    def finish(self, info: CallInfo) -> None:
        """Complete a call: its file :data:`INFO` appears as a whole."""
        content, folder = msgspec.json.format(msgspec.json.encode(info), indent=2), self.path / info.id
        if self.store is not None and not folder.exists():  # it was taken for lost, or deleted
            folder.mkdir(mode=0o700)
            if self._lists_later:
                self._mark(folder)
        _write_whole(folder / INFO, content)
        if not self._lists_later:
            self.entries.update(info)

    @contextmanager
    def open(
        self, entry: str, scope: CallScope = ALL_CALLS, name: str = ""
    ) -> Iterator[tuple[CallInfo, Path]]:
        """What the list says of an entry, and a folder with its files; with a store copies, of ``name`` only.

        Raises:
            CallNotFoundError: there is none of this id, or its files are not here.
        """
        info, folder = self._info(entry, scope), self.path / entry
        if self.store is None and folder.is_dir():
            yield info, folder
            return
        with TemporaryDirectory() as copies:
            try:  # copies: an upload removes the folder
                for path in [folder / name] if name else folder.glob("[!.]*"):
                    shutil.copy(path, copies)
                folder.stat()
            except FileNotFoundError:
                with self._stored(entry) as store:
                    store.download(entry, Path(copies), name)
            yield info, Path(copies)

    def open_file(self, entry: str, name: str, scope: CallScope = ALL_CALLS) -> tuple[OpenFile, int]:
        """A file of an entry, here or in the store, and its size.

        Raises:
            CallNotFoundError: there is no such entry, or its files are not here.
            FileNotFoundError: it has no such file.
        """
        path = self.path / self._info(entry, scope).id / name
        try:
            file = path.open("rb")
        except FileNotFoundError:
            if self.store is None:
                raise
            with self._stored(entry) as store:
                stored = store.open(entry, name)
            return stored, stored.size
        return file, os.fstat(file.fileno()).st_size

    @contextmanager
    def _stored(self, entry: str) -> Iterator[CallStore]:
        """The store, for files of an entry that are not here."""
        missing = f"{self.path} and its store do not have the files of {entry}, or not yet"
        if self.store is None:
            raise CallFilesMissingError(missing)
        try:
            yield self.store
        except FileNotFoundError as error:
            if self.store.names(entry):
                raise
            raise CallFilesMissingError(missing) from error

    def delete(self, entry: str, scope: CallScope = ALL_CALLS) -> None:
        """Delete an entry, first its files and then its line in the list.

        Raises:
            CallNotFoundError: there is none of this id.
        """
        self._remove(self._info(entry, scope).id)

    def delete_due(self, now: datetime) -> int:
        """Delete the calls whose time is over; returns how many they were.

        Raises:
            OSError: the list, the store, or the files of a call failed; other calls are deleted if possible.
        """
        due = [info.id for info in self.entries.newest(due=to_iso(now))]
        deleted, failure = _do_each(self._remove, due, {})
        self.entries.forget(to_iso(now))
        if deleted:
            _log.info("%d recorded calls were deleted: their time was over", len(deleted))
        if failure:
            raise failure
        return len(deleted)

    def has_room(self) -> bool:
        """Whether recordings leave :data:`LEAST_FREE` on their disk, and those for a store have room."""
        return shutil.disk_usage(self.path).free >= LEAST_FREE and self.spool_bytes <= MAX_SPOOL

    def upload_finished(self) -> None:
        """Have the list know all calls, and move the files of those that have ended into the store.

        What is left because it failed is done later; a call that is refused, or whose files are damaged, an
        hour later. Other lists' calls are left to their servers.

        Raises:
            OSError: the list, the store, or the files of a call failed; other calls do not wait for those.
        """
        if self.store is None:
            return
        self._measure()
        if self._own_list is None:
            self.entries.read_key()
            self._join_own_list(self.path / _LIST)
        names, now = sorted(path.name for path in self.path.glob("*/")), time.monotonic()
        self.refused = {name: at for name, at in self.refused.items() if name in names and at > now}
        waiting = [name for name in names if name not in self.refused]
        listed, failure = _do_each(self._list_again, waiting, self.refused)
        _, failed = _do_each(partial(self._move, self.store), listed, self.refused)
        self._measure()
        if failure := failed or failure:
            raise failure

    def _join_own_list(self, path: Path) -> None:
        """Take over the list that is in the folder, from before its servers shared one."""
        if path.exists():
            own, before = CallDatabase(partial(ask_sqlite, path)), ("", "")
            while infos := own.newest(limit=_JOINED_AT_ONCE, before=before):
                self.entries.add(*infos)
                before = infos[-1].started, infos[-1].id
            for folder in self.path.glob("*/"):
                if _ENTRY.fullmatch(folder.name) and not (folder / _MARK).exists():
                    self._mark(folder)
            path.unlink(missing_ok=True)

    def _mark(self, folder: Path) -> None:
        _write_whole(folder / _MARK, self.entries.mark.encode())

    def _is_of_list(self, folder: Path) -> bool:
        """Whether a call is of this list, or may be; one without a mark is of the folder's own."""
        try:
            mark = (folder / _MARK).read_text()
        except FileNotFoundError:
            return self._own_list is not None
        return self._own_list is None and mark in ("", self.entries.mark)

    def _list_again(self, entry: str) -> bool:
        """If a call is of this list, have that say what its folder says; returns whether it is."""
        folder = self.path / entry
        begun, ended = folder / _UNLISTED, folder / INFO
        if not self._is_of_list(folder):
            return False
        source = ended if ended.exists() else begun
        try:
            info = msgspec.json.decode(source.read_bytes(), type=CallInfo)
        except (FileNotFoundError, ValueError):  # of msgspec, also for bytes that are not UTF-8
            if source == ended:
                raise
            return True  # it is listed, or nothing says how
        if begun.exists():
            self._mark(folder)  # it may have begun while the list was away; no other may take it now
            self.entries.add(info)  # it may be there, if only the answer was lost
            begun.unlink(missing_ok=True)
        if source == ended:
            self.entries.update(info)
        return True

    def _move(self, store: CallStore, entry: str) -> bool:
        folder = self.path / entry
        if not self._is_over(folder):
            return False
        try:
            store.upload(folder)
        except FileNotFoundError:
            if folder.exists():  # there is no such bucket; else it was deleted, or another server's
                raise
        finally:
            if self.entries.find(entry) is None:  # it was deleted meanwhile
                store.delete(entry)
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _is_over(self, folder: Path) -> bool:
        """Whether a call has ended, or its server has not ended it."""
        try:
            if (folder / INFO).exists():
                return True
            changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        except FileNotFoundError:
            return False
        return changed < time.time() - _LOST_S and _ENTRY.fullmatch(folder.name) is not None

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


def _do_each(
    work: Callable[[str], bool], entries: Iterable[str], refused: dict[str, float]
) -> tuple[list[str], OSError | None]:
    """The entries for which it returned True, and the last failure; adds those that are ``refused``."""
    done: list[str] = []
    failure: OSError | None = None
    in_a_row = 0
    for entry in entries:
        try:
            if work(entry):
                done.append(entry)
                in_a_row = 0
        except (OSError, ValueError) as error:
            _log.error("the recorded call %s cannot be listed, moved or deleted now: %s", entry, error)
            if isinstance(error, ValueError) or error.errno == errno.EINVAL:
                refused[entry] = time.monotonic() + _REFUSED_S
                continue
            failure = error
            in_a_row += error.errno is None
            if in_a_row > 1:  # of the store or the list, not of one call: each would wait for it
                break
    return done, failure


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


def _write_whole(path: Path, content: bytes) -> None:
    """A file that appears as a whole."""
    temporary = path.with_name(f"{path.name}.part")
    with open_private(temporary) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def to_iso(moment: datetime) -> str:
    """UTC in ISO 8601, in a form that sorts by time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

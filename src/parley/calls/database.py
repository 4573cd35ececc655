"""The list of recorded calls: in SQLite, or in a PostgreSQL database that servers share."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from parley.checkpoint import DecidedState
from parley.protocol import Transfer

Ask: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Runs one statement with its values, and returns the rows."""
_BUSY_S = 5.0
TABLES = """CREATE TABLE IF NOT EXISTS parley_calls (id {text} PRIMARY KEY, agent {text} NOT NULL,
started {text} NOT NULL, delete_at {text} NOT NULL, owner {text}, info {bytes} NOT NULL);
CREATE INDEX IF NOT EXISTS parley_calls_by_owner ON parley_calls (owner, started, id);
CREATE INDEX IF NOT EXISTS parley_calls_by_start ON parley_calls (started, id);
CREATE INDEX IF NOT EXISTS parley_calls_by_due ON parley_calls (delete_at);
CREATE TABLE IF NOT EXISTS parley_call_keys (id INTEGER PRIMARY KEY, key {bytes} NOT NULL)"""
_IS_KEPT = "length(info) > 0"
"""A deleted row stays, empty, until ``delete_at``, so that a repeated INSERT cannot restore it."""
_GET_KEY = "SELECT key FROM parley_call_keys"
_PUT_KEY = "INSERT INTO parley_call_keys (id, key) VALUES (1, %s) ON CONFLICT DO NOTHING RETURNING key"


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
    """Which calls of a list are to be seen; the others are unknown to the caller."""

    owner: str | None = None
    """Of calls that have this owner only, and none if it is empty. None: of all."""
    agents: frozenset[str] | None = None
    """Calls of these agents. None: of all."""


ALL_CALLS = CallScope()


class CallDatabase:
    """The list. All methods wait for the database, and raise ``OSError`` where that fails.

    Args:
        ask: runs one statement.
    """

    def __init__(self, ask: Ask) -> None:
        self._run = ask
        self.key = secrets.token_bytes(32)
        """That of the servers of this list, once it was used."""
        self._has_key = False

    def _ask(self, statement: str, *values: str | int | bytes | None) -> list[tuple[Any, ...]]:
        self.read_key()
        return self._run(statement, *values)

    def read_key(self) -> None:
        """Read the list's key, or create it."""
        if not self._has_key:  # who only reads the list needs no right to write it
            found = self._run(_GET_KEY) or self._run(_PUT_KEY, self.key) or self._run(_GET_KEY)
            self._has_key = bool(found)
            self.key = found[0][0] if found else self.key

    @property
    def mark(self) -> str:
        """A text that no other list has; empty until the key was read."""
        return sha256(self.key).hexdigest() if self._has_key else ""

    def add(self, *infos: CallInfo) -> int:
        """Add entries in one statement; returns how many: those stay whose ids are there."""
        values: list[str | bytes | None] = []
        for info in infos:
            # Without an owner it is NULL: no key may see it, even one whose owner is empty.
            owner, content = info.owner or None, msgspec.json.encode(info)
            values += info.id, info.agent, info.started, info.delete_at, owner, content
        statement = f"""INSERT INTO parley_calls (id, agent, started, delete_at, owner, info)
        VALUES {", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(infos))}
        ON CONFLICT (id) DO NOTHING RETURNING id"""  # noqa: S608 - constants
        return len(self._ask(statement, *values))

    def update(self, info: CallInfo) -> None:
        """Replace an entry; one that was deleted does not come back."""
        statement = f"UPDATE parley_calls SET info = %s WHERE id = %s AND {_IS_KEPT}"  # noqa: S608 - constants
        self._ask(statement, msgspec.json.encode(info), info.id)

    def remove(self, entry: str) -> bool:
        """Remove an entry; returns whether it was there: another server may have removed it meanwhile."""
        statement = f"""UPDATE parley_calls SET agent = '', owner = NULL, info = ''
        WHERE id = %s AND {_IS_KEPT} RETURNING id"""  # noqa: S608 - constants
        return bool(self._ask(statement, entry))

    def forget(self, due: str) -> None:
        """Delete what is left of entries that were removed and that were to be deleted at a time."""
        self._ask(f"DELETE FROM parley_calls WHERE delete_at <= %s AND NOT {_IS_KEPT}", due)  # noqa: S608 - constants

    def find(self, entry: str, scope: CallScope = ALL_CALLS) -> CallInfo | None:
        """An entry; None: there is none."""
        return next(iter(self.newest(scope=scope, entry=entry)), None)

    def newest(
        self,
        agent: str = "",
        limit: int = 2**31 - 1,
        scope: CallScope = ALL_CALLS,
        before: tuple[str, str] = ("", ""),
        *,
        entry: str = "",
        due: str = "",
    ) -> list[CallInfo]:
        """The entries, newest first, that meet all that is given.

        ``before``: time and id of a call, whether it still exists or not; only earlier ones are listed.
        ``due``: a time; only those are listed that are to be deleted then, in the order of their deletion.
        """
        conditions = {
            "owner = %s": None if scope.owner is None else [scope.owner],
            # NULL, which nothing equals: there may be none.
            f"agent IN (NULL{', %s' * len(scope.agents or ())})": scope.agents,
            "agent = %s": [agent] if agent else None,
            "(started, id) < (%s, %s)": before if before[0] else None,
            "id = %s": [entry] if entry else None,
            "delete_at <= %s": [due] if due else None,
        }
        given = {condition: values for condition, values in conditions.items() if values is not None}
        query = f"""SELECT info FROM parley_calls WHERE {" AND ".join([_IS_KEPT, *given])}
        ORDER BY {"delete_at" if due else "started DESC, id DESC"} LIMIT %s"""  # noqa: S608 - constants
        rows = self._ask(query, *(value for values in given.values() for value in values), limit)
        return [msgspec.json.decode(info, type=CallInfo) for (info,) in rows]


def ask_sqlite(path: Path, statement: str, *values: str | int | bytes | None) -> list[tuple[Any, ...]]:
    """Run a statement on a list in SQLite; one that is not there is empty."""
    if not path.exists():
        return []
    try:
        # Each use has its own connection: threads differ, and a process may be ended at any time.
        with closing(sqlite3.connect(path, timeout=_BUSY_S)) as db, db:
            db.executescript(TABLES.format(text="TEXT", bytes="BLOB"))
            return db.execute(statement.replace("%s", "?"), values).fetchall()
    except sqlite3.Error as error:
        raise OSError(f"the list of calls {path} cannot be used: {error}") from error

"""PostgreSQL databases that settings name."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from parley.errors import ModelLoadingError

_LIMITS = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5}
"""A host that is gone without a word is given up after 10 s, also while a transaction is rolled back."""
_WAIT_S = 10.0
AWAY_S = 30.0
"""For so long after a failure no connection is tried."""
LOCK_CREATION = f"SELECT pg_advisory_xact_lock({0x7061726C})"
"""Two servers that create a table at once would fail, though it may be there already."""


def bounded_conninfo(setting: str, url: str) -> str:
    """How to connect to the database of a setting, with limits of time.

    Raises:
        ModelLoadingError: the URL cannot be used, or has a password, which logs would show.
    """
    try:
        named = conninfo_to_dict(url)
    except psycopg.Error:
        named = {}
    if not named or "password" in named:
        raise ModelLoadingError(
            f"{setting} must be postgresql://user@host/name, without a password: set PGPASSFILE"
        )
    return make_conninfo(url, **_LIMITS)


class SharedTables:
    """Tables that are made when they are not there. Calls may come from several threads, and block.

    Args:
        setting: names the database.
        url: of the database, as :func:`bounded_conninfo` takes it.
        create: makes the tables.
    """

    def __init__(self, setting: str, url: str, create: str) -> None:
        self._setting = setting
        self._conninfo = bounded_conninfo(setting, url)
        self._create = f"{LOCK_CREATION};{create}".encode()  # one transaction
        self._away_until = 0.0
        self._is_completed = False

    def ask(self, statement: str, *values: str | int | bytes | None) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Raises:
            OSError: the database has failed, or takes longer than 10 s; ``EINVAL``: it refuses the values.
        """
        if monotonic() < self._away_until:
            raise OSError(f"{self._setting}: the database has failed less than {AWAY_S:g} s ago")
        try:
            with (
                psycopg.connect(self._conninfo, autocommit=True) as db,
                socket.fromfd(db.fileno(), socket.AF_INET, socket.SOCK_STREAM) as line,
            ):
                # A server that hangs keeps the connection open.
                late = threading.Timer(_WAIT_S, _end, [line])
                late.start()
                try:
                    return self._run(db, statement.encode(), values)
                finally:
                    late.cancel()
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError):
                self._away_until = monotonic() + AWAY_S
            text = f"{self._setting}: {' '.join(str(error).split())}"
            is_of_values = isinstance(error, psycopg.DataError)
            raise (OSError(errno.EINVAL, text) if is_of_values else OSError(text)) from error

    def _run(self, db: psycopg.Connection, statement: bytes, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self._is_completed:  # tables from before may lack an index; once, as it may take too long
            self._is_completed = True
            with suppress(psycopg.errors.InsufficientPrivilege):
                db.execute(self._create)
        try:
            cursor = db.execute(statement, values)
        except psycopg.errors.UndefinedTable:
            db.execute(self._create)
            cursor = db.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def _end(line: socket.socket) -> None:
    with suppress(OSError):  # it has just ended by itself
        line.shutdown(socket.SHUT_RDWR)

"""A real PostgreSQL for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


class Postgres:
    """A server in a folder of its own, which trusts everybody on the loopback."""

    def __init__(self, folder: Path) -> None:
        self._programs = PROGRAMS[-1].parent
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://parley@127.0.0.1:{self._port}/postgres"
        # PostgreSQL refuses to be run by root.
        self._user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._user:
            shutil.chown(folder, "postgres")
        self._run("initdb", "--auth=trust", "--username=parley", "--no-sync")

    def _run(self, program: str, *options: str) -> None:
        command = [*self._user, self._programs / program, "-D", self._folder / "data", *options]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=60)

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "--wait", "-o", options, "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "-m", "immediate", "stop")

    def execute(self, statement: str, *values: bytes):
        with psycopg.connect(self.url) as db:
            return db.execute(statement, values)

    def rows(self, statements: str):
        """Those of the last of several statements."""
        with psycopg.connect(self.url) as db:
            cursor = db.execute(statements)
            while cursor.nextset():
                pass
            return cursor.fetchall()


@contextmanager
def serving():
    """A server that has been started."""
    if not PROGRAMS:
        pytest.skip("needs PostgreSQL")
    # pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="parley-postgres-"))
    try:
        server = Postgres(folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)

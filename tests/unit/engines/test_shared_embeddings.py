"""Vectors of passages that servers share, in a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import psycopg
import pytest
from fake_embedder import FakeEmbedder
from psycopg.conninfo import conninfo_to_dict

from parley.engines import shared_embeddings
from parley.engines.shared_embeddings import SharedEmbedder
from parley.errors import InvalidInputError, ModelLoadingError, ModelUnavailableError

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
TEXTS = ["The printer is broken.", "Passwords have 14 characters.", "Guests get a code."]


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


@pytest.fixture(scope="module")
def server():
    if not PROGRAMS:
        pytest.skip("needs PostgreSQL")
    folder = Path(
        tempfile.mkdtemp(prefix="parley-postgres-")
    )  # pytest's own folders are closed to other users
    try:
        server = Postgres(folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgres(server):
    yield server
    server.execute("DROP TABLE IF EXISTS parley_vectors")


def texts_of(embedder):
    return [text for texts, _ in embedder.calls for text in texts]


async def test_vectors_that_one_server_has_made_are_used_by_others(postgres):
    one, other = FakeEmbedder(), FakeEmbedder()
    made = await SharedEmbedder(one, postgres.url).embed(TEXTS[:2], kind="passage")
    shared = SharedEmbedder(other, postgres.url)
    taken = await shared.embed([TEXTS[2], *TEXTS[:2], TEXTS[2]], kind="passage")
    assert np.array_equal(taken[1:3], made)
    assert np.array_equal(taken, await FakeEmbedder().embed([TEXTS[2], *TEXTS[:2], TEXTS[2]], kind="passage"))
    assert taken.dtype == np.float32
    assert texts_of(other) == [TEXTS[2]]
    assert await shared.describe() == other.space


async def test_servers_that_begin_at_once_make_each_vector_once(postgres):
    class Slow(FakeEmbedder):
        async def embed(self, texts, *, kind):
            await asyncio.sleep(0.05)
            return await super().embed(texts, kind=kind)

    embedders = [Slow() for _ in range(4)]
    work = (SharedEmbedder(one, postgres.url).embed(TEXTS, kind="passage") for one in embedders)
    vectors = await asyncio.gather(*work)
    assert sorted(len(one.calls) for one in embedders) == [0, 0, 0, 1]
    assert all(np.array_equal(one, vectors[0]) for one in vectors)


async def test_vectors_of_other_weights_are_not_used(postgres):
    await SharedEmbedder(FakeEmbedder(), postgres.url).embed(TEXTS, kind="passage")
    other = FakeEmbedder(fingerprint="other")
    await SharedEmbedder(other, postgres.url).embed(TEXTS, kind="passage")
    assert texts_of(other) == TEXTS


@pytest.mark.parametrize("wrong", [b"\0", np.full(256, np.nan, "<f4").tobytes()])
async def test_wrong_vector_in_the_database_is_made_anew_and_replaced(postgres, wrong):
    right = await SharedEmbedder(FakeEmbedder(), postgres.url).embed(TEXTS, kind="passage")
    postgres.execute("UPDATE parley_vectors SET vector = %s", wrong)
    for made in (TEXTS, []):
        embedder = FakeEmbedder()
        vectors = await SharedEmbedder(embedder, postgres.url).embed(TEXTS, kind="passage")
        assert np.array_equal(vectors, right)
        assert texts_of(embedder) == made


async def test_connection_to_a_host_that_is_silently_gone_has_a_limit(monkeypatch):
    async def connect(url):
        asked.update(conninfo_to_dict(url))
        raise psycopg.OperationalError

    asked = {}
    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
    await SharedEmbedder(FakeEmbedder(), "postgresql://parley@db/x").embed(TEXTS, kind="passage")
    assert int(asked["tcp_user_timeout"]) == 10_000
    # Without data on the way the limit counts only where probes are sent.
    assert int(asked["keepalives_idle"]) + int(asked["keepalives_interval"]) <= 10


async def test_queries_do_not_reach_the_database(postgres):
    embedder = FakeEmbedder()
    await SharedEmbedder(embedder, "postgresql://parley@127.0.0.1:1/none").embed(["what"], kind="query")
    assert embedder.calls == [(("what",), "query")]


async def test_vectors_that_no_server_has_taken_for_long_are_removed(postgres):
    await SharedEmbedder(FakeEmbedder(), postgres.url).embed(TEXTS, kind="passage")
    postgres.execute("UPDATE parley_vectors SET used = now() - interval '89 days'")
    await SharedEmbedder(FakeEmbedder(), postgres.url).embed(TEXTS[:1], kind="passage")
    postgres.execute("UPDATE parley_vectors SET used = used - interval '2 days'")
    await SharedEmbedder(FakeEmbedder(), postgres.url).embed(TEXTS[:1], kind="passage")
    with psycopg.connect(postgres.url) as db:
        assert db.execute("SELECT count(*) FROM parley_vectors").fetchone() == (1,)


async def test_server_makes_its_own_vectors_while_the_database_is_away(postgres, monkeypatch, caplog):
    embedder = FakeEmbedder()
    shared = SharedEmbedder(embedder, postgres.url)
    postgres.stop()
    try:
        for text in TEXTS[:2]:
            assert len(await shared.embed([text], kind="passage")) == 1
        assert caplog.text.count("vectors of passages are not shared for 30 s: ") == 1
    finally:
        postgres.start()
    monkeypatch.setattr(shared, "_away_until", 0.0)
    await shared.embed(TEXTS, kind="passage")
    other = FakeEmbedder()
    await SharedEmbedder(other, postgres.url).embed(TEXTS, kind="passage")
    assert not other.calls


async def test_lock_of_a_server_that_hangs_is_not_waited_for_without_limit(postgres, monkeypatch, caplog):
    monkeypatch.setattr(shared_embeddings, "_WAIT_S", 2.0)

    class Hanging(FakeEmbedder):
        began = asyncio.Event()

        async def embed(self, texts, *, kind):
            self.began.set()
            await asyncio.Event().wait()

    hanging = asyncio.create_task(SharedEmbedder(Hanging(), postgres.url).embed(TEXTS, kind="passage"))
    try:
        await Hanging.began.wait()
        embedder = FakeEmbedder()
        shared = SharedEmbedder(embedder, postgres.url)
        await shared.embed(TEXTS, kind="passage")
        assert texts_of(embedder) == TEXTS
        await shared.embed(TEXTS[:1], kind="passage")  # the database is used all the same
        postgres.execute("SELECT 1 / count(*) FROM parley_vectors")
    finally:
        hanging.cancel()
        await asyncio.wait([hanging])


@pytest.mark.parametrize("error", [InvalidInputError("no words"), ModelUnavailableError("not loaded")])
async def test_failure_of_the_embedder_is_the_callers(postgres, error):
    embedder = FakeEmbedder()
    shared = SharedEmbedder(embedder, postgres.url)
    embedder.error = error
    with pytest.raises(type(error)):
        await shared.embed(TEXTS, kind="passage")
    embedder.error = None
    assert len(await shared.embed(TEXTS, kind="passage")) == len(TEXTS)


@pytest.mark.parametrize(
    "url", ["nothing", "postgresql://parley:secret@db/x", "postgresql://parley@db/x?password=secret"]
)
def test_url_that_cannot_be_used_or_has_a_password_is_refused_without_its_text(url):
    with pytest.raises(ModelLoadingError, match="without a password: set PGPASSFILE") as refused:
        SharedEmbedder(FakeEmbedder(), url)
    assert "secret" not in str(refused.value)

"""Vectors of passages that servers share, in a real PostgreSQL."""

from __future__ import annotations

import asyncio

import numpy as np
import psycopg
import pytest
from fake_embedder import FakeEmbedder
from postgres_server import serving
from psycopg.conninfo import conninfo_to_dict

from parley.engines import shared_embeddings
from parley.engines.shared_embeddings import SharedEmbedder
from parley.errors import InvalidInputError, ModelLoadingError, ModelUnavailableError

TEXTS = ["The printer is broken.", "Passwords have 14 characters.", "Guests get a code."]


@pytest.fixture(scope="module")
def server():
    with serving() as made:
        yield made


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

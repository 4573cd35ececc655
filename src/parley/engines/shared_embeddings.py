"""Vectors of passages that several servers share in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence

import numpy as np
import psycopg
from numpy.typing import NDArray

from parley.embeddings.messages import EmbeddingSpace, TextKind
from parley.engines.base import Embedder
from parley.runtime.postgres import AWAY_S, LOCK_CREATION, bounded_conninfo
from parley.timeouts import loop_time

_WAIT_S = 60.0
"""For another server that makes the same vectors, and for the database's answers."""
_CREATE = """CREATE TABLE IF NOT EXISTS parley_vectors (
    space text, passage bytea, vector bytea NOT NULL, used timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (space, passage))"""
_REMOVE_OLD = "DELETE FROM parley_vectors WHERE used < now() - interval '90 days'"
_LIMIT_LOCKS = "SELECT set_config('lock_timeout', %s, true)"
_LOCK = "SELECT pg_advisory_xact_lock(%s)"
_TAKE = "SELECT passage, vector FROM parley_vectors WHERE space = %s AND passage = ANY(%s)"
_KEEP = """UPDATE parley_vectors SET used = now()
    WHERE space = %s AND passage = ANY(%s) AND used < now() - interval '1 day'"""
_PUT = """INSERT INTO parley_vectors (space, passage, vector) VALUES (%s, %s, %s)
    ON CONFLICT (space, passage) DO UPDATE SET vector = excluded.vector"""
_log = logging.getLogger(__name__)


class SharedEmbedder:
    """Another embedder, whose vectors of passages are made by one server and used by all.

    A batch of passages is locked while its vectors are made; other servers wait for them, half a minute at
    most. They are found by the hash of the passage and the fingerprint of the weights, and are removed when
    no server has taken them for 90 days. While the database is away, this server makes its own.

    Args:
        embedder: makes the vectors that are not there, and those of queries.
        url: of the database, ``postgresql://user@host/name``; the password comes from the file that
            ``passfile=`` or ``PGPASSFILE`` names, or from ``PGPASSWORD``.

    Raises:
        ModelLoadingError: the URL cannot be used, or has a password, which logs would show.
    """

    def __init__(self, embedder: Embedder, url: str) -> None:
        self._embedder = embedder
        self._conninfo = bounded_conninfo("knowledge_store", url)
        self._is_created = False
        self._away_until = 0.0

    async def describe(self) -> EmbeddingSpace:
        """See :class:`parley.engines.base.Embedder`."""
        return await self._embedder.describe()

    async def embed(self, texts: Sequence[str], *, kind: TextKind) -> NDArray[np.float32]:
        """See :class:`parley.engines.base.Embedder`."""
        if kind == "passage" and texts and loop_time() >= self._away_until:
            try:
                async with asyncio.timeout(_WAIT_S):
                    return await self._embed_once(texts)
            except psycopg.errors.LockNotAvailable:
                _log.info("another server has not made the vectors of %d passages in time", len(texts))
            except (psycopg.Error, TimeoutError) as error:
                self._away_until = loop_time() + AWAY_S
                reason = str(error).strip() or type(error).__name__
                _log.warning("vectors of passages are not shared for %g s: %s", AWAY_S, reason)
        return await self._embedder.embed(texts, kind=kind)

    async def _embed_once(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of texts, of which only those are made that are not in the database."""
        space = await self.describe()
        passages = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts]
        batch = hashlib.sha256(b"".join([space.fingerprint.encode(), *sorted(passages)])).digest()
        connecting = psycopg.AsyncConnection.connect(self._conninfo)
        async with await connecting as db:  # a transaction, which frees the lock at its end
            if not self._is_created:
                await db.execute(LOCK_CREATION)
                await db.execute(_CREATE)
                await db.execute(_REMOVE_OLD)
                await db.commit()
                self._is_created = True
            await db.execute(_LIMIT_LOCKS, [f"{500 * _WAIT_S:.0f}"])  # milliseconds; the rest is for the work
            await db.execute(_LOCK, [int.from_bytes(batch[:8], signed=True)])
            taken = await (await db.execute(_TAKE, [space.fingerprint, passages])).fetchall()
            size = 4 * space.dimensions
            vectors = {key: np.frombuffer(raw, "<f4") for key, raw in taken if len(raw) == size}
            found = {key: vector for key, vector in vectors.items() if np.isfinite(vector).all()}
            lacking = {key: text for key, text in zip(passages, texts, strict=True) if key not in found}
            if lacking:
                made = await self._embedder.embed([*lacking.values()], kind="passage")
                found.update(zip(lacking, made, strict=True))
            await db.execute(_KEEP, [space.fingerprint, passages])  # it locks them: not while others are made
            for passage in sorted(lacking):  # in one order: batches of other servers may overlap
                await db.execute(_PUT, [space.fingerprint, passage, found[passage].astype("<f4").tobytes()])
        return np.stack([found[passage] for passage in passages])

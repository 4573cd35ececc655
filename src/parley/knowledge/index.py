"""An index of passages in SQLite: words by FTS5 (BM25), vectors as a matrix, and both ranks joined."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import ModelLoadingError
from parley.knowledge.chunks import Chunk, check_count
from parley.knowledge.passages import Passage

_SCHEMA = """
CREATE TABLE files (name TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE contents (content TEXT PRIMARY KEY);
CREATE VIRTUAL TABLE passages USING fts5(
    heading, text, content_id UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE vectors (passage INTEGER PRIMARY KEY, vector BLOB NOT NULL);
"""
_BUSY_S = 10.0
_RANKED = 20
"""Places of each ranking that count."""
_SMOOTHING = 60
"""Of reciprocal rank fusion: a place counts 1 / (60 + place)."""
_LEAST_SHARE = 0.4
"""Of the best passage's BM25 score, and of its similarity: lower results are dropped."""
_HEADING_WEIGHT = 2.0
"""Of a word in a heading; one in the text counts 1."""


class KnowledgeIndex:
    """Passages of the files of one agent. Calls may come from several threads, and block.

    The file is a cache: one that is damaged is made anew. Several processes may use it. A search does not
    wait for a change that is being written.

    Args:
        dimensions: of a vector; 0: there are none.

    Raises:
        ModelLoadingError: it cannot be opened.
    """

    def __init__(self, path: Path, dimensions: int = 0) -> None:
        self._path = path
        self._dimensions = dimensions
        self._vectors = (np.zeros(0, np.int64), np.zeros((0, dimensions), np.float32))
        """The numbers of the passages, and their vectors."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._connect()
            except sqlite3.OperationalError:  # it is locked, or cannot be written to
                raise
            except sqlite3.DatabaseError:
                path.unlink(missing_ok=True)
                self._connect()
        except (OSError, sqlite3.Error) as error:
            raise ModelLoadingError(f"the index {path} cannot be opened: {error}") from error

    def _connect(self) -> None:
        self._writer, self._reader = _Connection(self._path), _Connection(self._path)
        try:
            with self._writing() as db:
                if not db.execute("PRAGMA user_version").fetchone()[0]:
                    for statement in _SCHEMA.strip().split(";\n"):
                        db.execute(statement)
                    db.execute("PRAGMA user_version = 1")
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._writer.lock:
            db = self._writer.db
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")  # fails while another process reads
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._reader.lock:
            return self._reader.db.execute(query, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        for one in (self._writer, self._reader):
            with one.lock:
                one.db.close()

    # --- contents ---------------------------------------------------------------------------

    def missing(self, contents: Sequence[str]) -> set[str]:
        """Those contents, by their hashes, whose passages are not here."""
        return set(contents) - {content for (content,) in self._read("SELECT content FROM contents")}

    def replace(self, files: Mapping[str, str], chunks: Mapping[str, Sequence[Chunk]]) -> bool:
        """Have these files and no others, as a whole or not at all.

        Args:
            files: the hash of the content by name.
            chunks: of each content that was missing.

        Returns:
            False: a content is missing, and nothing was changed.

        Raises:
            KnowledgeError: there are too many passages.
        """
        wanted = set(files.values())
        with self._writing() as db:
            known = {row[0] for row in db.execute("SELECT content FROM contents")}
            if wanted - known - chunks.keys():
                return False
            for content in sorted(known - wanted):
                db.execute(
                    "DELETE FROM vectors WHERE passage IN (SELECT rowid FROM passages WHERE content_id = ?)",
                    (content,),
                )
                db.execute("DELETE FROM passages WHERE content_id = ?", (content,))
                db.execute("DELETE FROM contents WHERE content = ?", (content,))
            count = db.execute("SELECT count(*) FROM passages").fetchone()[0]
            for name, content in files.items():
                if content in known:
                    continue
                known.add(content)
                count += len(chunks[content])
                check_count(name, count)
                db.execute("INSERT INTO contents VALUES (?)", (content,))
                db.executemany(
                    "INSERT INTO passages (heading, text, content_id) VALUES (?, ?, ?)",
                    [(chunk.heading, chunk.text, content) for chunk in chunks[content]],
                )
            db.execute("DELETE FROM files")
            db.executemany("INSERT INTO files VALUES (?, ?)", sorted(files.items()))
        return True

    @property
    def size(self) -> int:
        """Passages."""
        return int(self._read("SELECT count(*) FROM passages")[0][0])

    def without_vectors(self, count: int) -> list[tuple[int, str]]:
        """At most ``count`` passages that have no vector: number, and text with the heading."""
        rows = self._read(
            "SELECT rowid, heading, text FROM passages "
            "WHERE rowid NOT IN (SELECT passage FROM vectors) ORDER BY rowid LIMIT ?",
            count,
        )
        return [(number, f"{heading}\n{text}" if heading else text) for number, heading, text in rows]

    def add_vectors(self, numbers: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Add the vectors of passages: f32 ``[n, dimensions]`` of unit length."""
        rows = zip(numbers, [vector.tobytes() for vector in vectors.astype("<f4")], strict=True)
        with self._writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO vectors SELECT ?1, ?2 "
                "WHERE EXISTS (SELECT 1 FROM passages WHERE rowid = ?1)",
                rows,
            )

    def load_vectors(self) -> None:
        """Search among the vectors that are in the file now."""
        rows = self._read("SELECT passage, vector FROM vectors ORDER BY passage")
        matrix = np.frombuffer(b"".join(raw for _, raw in rows), "<f4").reshape(len(rows), self._dimensions)
        self._vectors = np.array([number for number, _ in rows], np.int64), matrix

    # --- search -----------------------------------------------------------------------------

    def search(
        self, words: Sequence[str], vector: NDArray[np.float32] | None = None, count: int = 5
    ) -> list[Passage]:
        """The passages with the best places in both rankings, best first.

        Args:
            words: of the question; those that a passage has count by BM25.
            vector: of the question, f32 ``[dimensions]`` of unit length; None: words alone count.
            count: of passages at most.
        """
        numbers, matrix = self._vectors
        rankings = [self._by_words(words)] if words else []
        if vector is not None and len(numbers):
            similarity = matrix @ vector
            nearest = np.argsort(-similarity, kind="stable")[:_RANKED]
            nearest = nearest[similarity[nearest] >= _LEAST_SHARE * similarity[nearest[0]]]
            rankings.append([int(number) for number in numbers[nearest]])
        scores: dict[int, float] = {}
        for ranking in rankings:
            for place, number in enumerate(ranking, 1):
                share = (_SMOOTHING + 1) / (_SMOOTHING + place) / len(rankings)
                scores[number] = scores.get(number, 0.0) + share
        chosen = sorted(scores, key=lambda number: -scores[number])[:count]
        return [passage for number in chosen for passage in self._passages(number, scores[number])]

    def _by_words(self, words: Sequence[str]) -> list[int]:
        found = self._read(
            "SELECT rowid, bm25(passages, ?2, 1.0) AS rank FROM passages WHERE passages MATCH ?1 "
            "ORDER BY rank LIMIT ?3",
            " OR ".join(f'"{word}"' for word in words),
            _HEADING_WEIGHT,
            _RANKED,
        )
        # SQLite's scores are negative: the least is the best.
        return [number for number, score in found if score <= _LEAST_SHARE * found[0][1]]

    def _passages(self, number: int, score: float) -> Iterator[Passage]:
        """The passage of a number; none: it was replaced meanwhile."""
        for name, heading, text in self._read(
            "SELECT (SELECT min(name) FROM files WHERE content = content_id), heading, text "
            "FROM passages WHERE rowid = ?",
            number,
        ):
            yield Passage(name, heading, text, score)


class _Connection:
    """Autocommits: transactions are those of the index."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        self.db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        # A change that does not fit into memory would lock readers out before it is complete.
        self.db.execute("PRAGMA cache_spill = OFF")

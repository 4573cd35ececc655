"""The knowledge of one agent: its index is built, kept up to date and searched."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.embeddings.messages import EmbeddingSpace
from parley.engines.base import Embedder
from parley.errors import (
    InferenceError,
    InvalidInputError,
    ModelLoadingError,
    ModelUnavailableError,
    ParleyError,
)
from parley.knowledge.chunks import CHUNKING, Chunk, check_count, split_document
from parley.knowledge.documents import Document, KnowledgeError, find_documents, read_document
from parley.knowledge.index import KnowledgeIndex
from parley.knowledge.passages import Passage, content_words
from parley.runtime.daemon_executor import DaemonExecutor
from parley.timeouts import loop_time, with_timeout

_LOOK_S = 2.0
"""Between two looks at the files. A change is taken once it is the same in two of them."""
_EMBED_AGAIN_S = 5.0
"""After a failure of the embedder. At the start of a server it may be loaded later than the agent."""
_TAKEN_AGAIN_S = 30.0
"""After changed files could not be taken, if they do not change once more."""
_QUERY_S = 1.0
_BATCH = 32
_MOST_INDEXES = 128
"""Files of the cache; those that were not used for longest are removed."""
_FOUND = 5
ResultT = TypeVar("ResultT")
_builders = DaemonExecutor(2, thread_name_prefix="knowledge")
"""For all agents: searches have other threads. A file that hangs does not hold up the end of the process."""
_refused: dict[tuple[Path, str], tuple[object, str]] = {}
"""The stamp and the error of files that were refused, by path and name: unchanged they are not read again."""
_log = logging.getLogger(__name__)


class Knowledge:
    """Passages of the files that patterns match, searched by words and by meaning.

    Without vectors, because there is no embedder or it fails, words alone count.

    Args:
        patterns: as :func:`parley.knowledge.documents.find_documents` takes them.
        embedder: None: words alone count.
        cache: folder of indexes, which are used again after a restart.
    """

    def __init__(
        self, name: str, folder: Path, patterns: Sequence[str], embedder: Embedder | None, cache: Path
    ) -> None:
        self._name = name
        self._folder = folder
        self._patterns = patterns
        self._embedder = embedder
        self._cache = cache
        self._index: KnowledgeIndex | None = None
        self._space: EmbeddingSpace | None = None
        """Of the vectors of the index; None: it has none."""
        self._due: float | None = None
        """When vectors are made that lack; None: there are all."""
        self._is_failing = False
        """Whether the embedder has failed last."""
        self._taken: list[Document] = []
        self._problem = ""
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Build the index as far as it is not there, and watch the files.

        Raises:
            ModelLoadingError: a file or the index cannot be used.
        """
        self._taken = await _in_thread(find_documents, self._folder, self._patterns)
        try:
            await self._complete()
        except BaseException as error:
            await self._replace_index(None)
            if isinstance(error, sqlite3.Error):
                raise ModelLoadingError(f"the index in {self._cache} cannot be written: {error}") from error
            raise
        if self._embedder is None:
            _log.warning("the agent %s finds passages by words alone: there is no embedder", self._name)
        self._watch = asyncio.create_task(self._follow(), name=f"knowledge of the agent {self._name}")

    async def close(self) -> None:
        """Stop watching, and close the index."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._replace_index(None)

    async def search(self, query: str) -> Sequence[Passage]:
        """The best passages, best first; none for a query of common words.

        Raises:
            InferenceError: the index cannot be read.
        """
        words, index = content_words(query), self._index
        if not words or index is None:
            return []
        vector = await self._vector(query)
        try:
            return await asyncio.to_thread(index.search, words, vector, _FOUND)
        except sqlite3.Error as error:
            if self._index is not index:  # it was replaced, and closed, meanwhile
                return await self.search(query)
            raise InferenceError(f"the index of the agent {self._name} cannot be read: {error}") from error

    async def _vector(self, query: str) -> NDArray[np.float32] | None:
        if self._embedder is None or self._space is None or self._is_failing:
            return None
        try:
            embedding = self._embedder.embed([query], kind="query")
            vectors = await with_timeout(embedding, _QUERY_S, "the embedder")
            space = await self._embedder.describe()
        except InvalidInputError:
            return None
        except ParleyError as error:
            self._on_failure(error, 0.0)  # perhaps it has other weights than before
            return None
        if space == self._space:
            return np.asarray(vectors[0], np.float32)
        self._due = loop_time()  # another agent has noticed that it has other weights
        return None

    # --- building -----------------------------------------------------------------------------

    async def _follow(self) -> None:
        seen = self._taken
        failed, again_at = self._taken, 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                found = await _in_thread(find_documents, self._folder, self._patterns)
                overdue = found != failed or loop_time() >= again_at
                if found == seen != self._taken and overdue and self._index is not None:
                    # A file that is wrong is not read again, with all others, at every look.
                    failed, again_at = found, loop_time() + _TAKEN_AGAIN_S
                    await self._take(self._index, found)
                    self._taken = found
                    self._due = loop_time()
                if self._due is not None and loop_time() >= self._due:
                    await self._complete()
                seen = found
                if found == self._taken:
                    self._problem = ""
            except Exception as error:  # noqa: BLE001 - logged; the next look may succeed
                self._report(str(error) or type(error).__name__)

    def _report(self, problem: str) -> None:
        """Log a problem, once; the index stays as it is."""
        if problem != self._problem:
            _log.error("knowledge of the agent %s: %s (it stays as it was before)", self._name, problem)
        self._problem = problem

    async def _complete(self) -> None:
        """Have an index with all vectors; after a failure of the embedder words alone count for now."""
        space = failure = None
        try:
            space = await self._embedder.describe() if self._embedder else None
        except ParleyError as error:
            failure = error
        is_new = self._index is None or (failure is None and space != self._space)
        if is_new:
            await self._make_index(space)
        try:
            if failure is None:
                await self._embed()
        except ParleyError as error:
            failure = error
        if failure is None:
            if self._space is not None and (self._is_failing or is_new):
                _log.info("the agent %s finds passages by vectors too", self._name)
            self._is_failing, self._due = False, None
        else:
            self._on_failure(failure, _EMBED_AGAIN_S)

    async def _make_index(self, space: EmbeddingSpace | None) -> None:
        """Begin an index for vectors of a space; the old one serves until then."""
        path = self._cache / _index_name(self._folder, self._name, self._patterns, space)
        index = await _in_thread(_open_index, path, space.dimensions if space else 0)
        try:
            await self._take(index, self._taken)
        except BaseException:
            await _in_thread(index.close)
            raise
        self._space = space
        await self._replace_index(index)
        _log.info("the agent %s has %d passages of knowledge", self._name, index.size)

    async def _replace_index(self, index: KnowledgeIndex | None) -> None:
        old, self._index = self._index, index
        if old is not None:
            await _in_thread(old.close)

    async def _take(self, index: KnowledgeIndex, documents: list[Document]) -> None:
        """Let an index have the passages of these files and no others."""
        # Another process may remove contents in between that this one need not have read.
        while not await _in_thread(
            index.replace, *await _in_thread(read_documents, documents, index.missing)
        ):
            pass
        # Numbers of passages that are gone may be those of new ones, which have no vectors yet.
        await _in_thread(index.load_vectors)

    async def _embed(self) -> None:
        """Make the vectors that lack.

        Raises:
            ParleyError: the embedder failed; what it has done is kept.
        """
        if self._index is None or self._embedder is None:
            return
        while rows := await _in_thread(self._index.without_vectors, _BATCH):
            vectors = await _embed_all(self._embedder, [text for _, text in rows])
            if await self._embedder.describe() != self._space:
                raise ModelUnavailableError("the embedder has other weights than before")
            await _in_thread(self._index.add_vectors, [number for number, _ in rows], vectors)
        await _in_thread(self._index.load_vectors)

    def _on_failure(self, error: ParleyError, again_s: float) -> None:
        was_failing, self._is_failing, self._due = self._is_failing, True, loop_time() + again_s
        if not was_failing:
            what = "the agent %s finds passages by words alone for now: %s"
            _log.warning(what, self._name, error.to_log(), extra=error.log_extra())


async def _embed_all(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of passages; one that cannot be represented, such as a line of dashes, gets a zero vector."""
    try:
        return await embedder.embed(texts, kind="passage")
    except InvalidInputError:
        if len(texts) == 1:
            return np.zeros((1, (await embedder.describe()).dimensions), np.float32)
    return np.concatenate([await _embed_all(embedder, [text]) for text in texts])


def check_documents(folder: Path, patterns: Sequence[str]) -> None:
    """Read the files of an agent as :class:`Knowledge` does, without an index.

    Raises:
        KnowledgeError: a file cannot be used.
    """
    read_documents(find_documents(folder, patterns), set)


def read_documents(
    documents: Sequence[Document], missing: Callable[[Sequence[str]], set[str]]
) -> tuple[Mapping[str, str], Mapping[str, list[Chunk]]]:
    """The hash of the content of each file by name, and the chunks of those contents that are missing.

    Raises:
        KnowledgeError: a file cannot be used, or could not and is unchanged.
        ModelLoadingError: the process that reads PDF has failed.
    """
    for document in documents:
        stamp, problem = _refused.get((document.path, document.name), (None, ""))
        if stamp == document.stamp:
            raise KnowledgeError(problem)
    files: dict[str, str] = {}
    chunks: dict[str, list[Chunk]] = {}
    for document in documents:
        raw = read_document(document)
        content = hashlib.sha256(document.path.suffix.lower().encode() + raw).hexdigest()
        if document.name in files:
            raise KnowledgeError(f"two files of different folders are called {document.name}")
        files[document.name] = content
        if content not in chunks and missing([content]):
            try:
                chunks[content] = split_document(document.name, raw)
            except KnowledgeError as error:
                _refused[document.path, document.name] = document.stamp, str(error)
                raise
            check_count(document.name, sum(map(len, chunks.values())))
    return files, chunks


def _open_index(path: Path, dimensions: int) -> KnowledgeIndex:
    index = KnowledgeIndex(path, dimensions)
    os.utime(path)
    others = sorted(path.parent.glob("*.sqlite"), key=_changed, reverse=True)
    for other in others[_MOST_INDEXES:]:
        other.unlink(missing_ok=True)
    return index


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _index_name(folder: Path, name: str, patterns: Sequence[str], space: EmbeddingSpace | None) -> str:
    """Other patterns, vectors of another space, and another way to cut documents have an index of their own.

    So calls that began before a change of the patterns go on with the documents that they had.
    """
    of = (
        str(folder.resolve()),
        name,
        *sorted(patterns),
        str(CHUNKING),
        "" if space is None else space.fingerprint,
    )
    return f"{name}-{hashlib.sha256(chr(0).join(of).encode()).hexdigest()[:24]}.sqlite"


async def _in_thread(work: Callable[..., ResultT], *values: Any) -> ResultT:
    return await asyncio.get_running_loop().run_in_executor(_builders, work, *values)

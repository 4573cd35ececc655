"""How often the passage that answers a question is among the five that an agent finds.

The questions of ``knowledge.toml`` are asked of indexes of the example's manual and of Parley's own docs,
without a server: by words (BM25), by vectors, and by both together. A question is answered if a passage below
the heading that is named with it is found. Ends with status 1 if a question names a heading that is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.embeddings.bert import make_graph
from parley.embeddings.encoder import SentenceFolder, TextEncoder
from parley.embeddings.files import FILES, WEIGHTS_FILE
from parley.engines.base import Embedder, EmbeddingSpace, TextKind
from parley.engines.embeddings import EMBEDDINGS
from parley.knowledge.documents import find_documents
from parley.knowledge.index import KnowledgeIndex
from parley.knowledge.knowledge import read_documents
from parley.knowledge.passages import Passage, content_words
from parley.launcher.options import ROOT
from parley.models.embeddings import DEFAULT
from parley.runtime.onnx import open_configured
from parley.runtime.repository import read_parameters
from parley.runtime.weights import resolve_weights

_QUESTIONS = Path(__file__).parent / "knowledge.toml"
_FOUND = 5
_BATCH = 32
_WAYS = ("words", "vectors", "both")


class LocalEmbedder:
    """The weights of ``embeddings`` of the profile open, without a server.

    Raises:
        ModelLoadingError: they are not there; the message says how they come.
    """

    def __init__(self) -> None:
        parameters = read_parameters(ROOT / "model_repository" / EMBEDDINGS, "open", os.environ)
        assert parameters is not None
        path = resolve_weights(parameters, DEFAULT, FILES)
        self._folder = SentenceFolder(path, {"query": "", "passage": ""})
        session = open_configured(path / WEIGHTS_FILE, parameters, part=make_graph(path, self._folder.config))
        self._encoder = TextEncoder(session, takes_mean=self._folder.takes_mean, run_tokens=256)

    async def describe(self) -> EmbeddingSpace:
        """The space of its vectors."""
        return self._folder.space

    async def embed(self, texts: Sequence[str], *, kind: TextKind) -> NDArray[np.float32]:
        """The vectors of texts."""
        return self._encoder.encode([self._folder.tokenize(text.encode(), kind) for text in texts])


async def embed(embedder: Embedder, texts: Sequence[str], kind: Any) -> NDArray[np.float32]:
    """Vectors of texts, f32 ``[n, dimensions]``."""
    batches = [texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)]
    return np.concatenate([await embedder.embed(batch, kind=kind) for batch in batches])


async def build(given: dict[str, Any], path: Path, embedder: Embedder | None) -> KnowledgeIndex:
    """An index of the files of a set of questions."""
    dimensions = (await embedder.describe()).dimensions if embedder else 0
    index = KnowledgeIndex(path, dimensions)
    documents = find_documents(ROOT / given["folder"], given["patterns"])
    files, chunks = read_documents(documents, set)
    index.replace(files, chunks)
    if embedder is not None:
        rows = index.without_vectors(index.size)
        index.add_vectors(
            [number for number, _ in rows], await embed(embedder, [text for _, text in rows], "passage")
        )
        index.load_vectors()
    names = {content: name for name, content in files.items()}
    headings = {
        (names[content], one.heading.rpartition(" > ")[2]) for content in chunks for one in chunks[content]
    }
    missing = [(file, heading) for _, file, heading in given["questions"] if (file, heading) not in headings]
    if missing:
        raise SystemExit(f"{_QUESTIONS.name}: there is no text below {missing}")
    return index


def is_answer(passage: Passage, file: str, heading: str) -> bool:
    """Whether a passage stands below a heading."""
    return passage.file == file and passage.heading.rpartition(" > ")[2] == heading


async def judge(given: dict[str, Any], embedder: Embedder | None, *, show: bool) -> None:
    """Print the line of a set of questions."""
    with tempfile.TemporaryDirectory() as folder:
        index = await build(given, Path(folder) / "index.sqlite", embedder)
        questions = given["questions"]
        vectors = None if embedder is None else await embed(embedder, [one[0] for one in questions], "query")
        shares: dict[str, str] = {}
        times: list[float] = []
        for way in _WAYS:
            if way != "words" and vectors is None:
                shares[way] = "-"
                continue
            right = 0
            for number, (question, file, heading) in enumerate(questions):
                words = [] if way == "vectors" else content_words(question)
                vector = None if way == "words" or vectors is None else vectors[number]
                began = time.perf_counter()
                found = index.search(words, vector, _FOUND)
                times.append(1000 * (time.perf_counter() - began))
                is_right = any(is_answer(one, file, heading) for one in found)
                right += is_right
                if show and not is_right:
                    print(f"    {way}: {question!r} is answered by {file} > {heading}")
            shares[way] = f"{right} of {len(questions)}"
        ranked = statistics.median(times), max(times)
        print(
            f"{given['name']:8} | {index.size:8} | {shares['words']:>10} | {shares['vectors']:>10} "
            f"| {shares['both']:>10} | {ranked[0]:.2f} / {ranked[1]:.2f}"
        )
        index.close()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", action="store_true", help="print the questions whose answer is not found")
    parser.add_argument("--words-only", action="store_true", help="measure without vectors")
    args = parser.parse_args()
    embedder = None if args.words_only else LocalEmbedder()
    print("set      | passages | words      | vectors    | both       | ms a search")
    for given in tomllib.loads(_QUESTIONS.read_text(encoding="utf-8"))["set"]:
        asyncio.run(judge(given, embedder, show=args.show))
    return 0

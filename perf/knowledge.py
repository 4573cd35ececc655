"""How often the passage that answers a question is among the five that an agent finds.

The questions of ``knowledge.toml`` are asked of indexes of the example's manual and of Parley's own docs,
without a server: by words (BM25), by vectors, and by both together. A question is answered if a passage below
the heading that is named with it is found. Ends with status 1 if a question names a heading that is missing.

With ``--answers`` the example's agent, in a server of the profile open started for it, answers questions as
text with its manual and without. An answer is right if it has what the question's pattern says; an answer
that has that and something wrong beside it counts as right too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness.report import describe_machine, describe_run
from harness.servers import Server, local_server
from numpy.typing import NDArray

from parley.embeddings.bert import make_graph
from parley.embeddings.encoder import SentenceFolder, TextEncoder
from parley.embeddings.files import FILES, WEIGHTS_FILE
from parley.embeddings.messages import EmbeddingSpace, TextKind
from parley.engines.base import Embedder
from parley.engines.embeddings import EMBEDDINGS
from parley.knowledge.documents import find_documents
from parley.knowledge.index import KnowledgeIndex
from parley.knowledge.knowledge import read_documents
from parley.knowledge.passages import Passage, content_words
from parley.launcher.options import ROOT
from parley.models.embeddings import DEFAULT
from parley.protocol import KnowledgeSource, KnowledgeUsed, ResponseText, TurnMetrics
from parley.runtime.onnx import open_configured
from parley.runtime.repository import read_parameters
from parley.runtime.weights import resolve_weights
from parley_client import connect
from parley_testing.results import wilson

_QUESTIONS = Path(__file__).parent / "knowledge.toml"
_FOUND = 5
_BATCH = 32
_WAYS = ("words", "vectors", "both")
_MANUAL = ROOT / "examples" / "agents" / "helpdesk.md"
_INSTRUCTIONS = "You answer the phone of the help desk at Northwind. Answer in one short sentence."
_AGENTS = {"without": "", "with": f'knowledge = ["{_MANUAL.name}"]'}
_ANSWER_S = 60.0
_VECTORS_S = 60.0


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


async def build(given: dict[str, Any], path: Path, embedder: Embedder) -> KnowledgeIndex:
    """An index of the files of a set of questions."""
    index = KnowledgeIndex(path, (await embedder.describe()).dimensions)
    documents = find_documents(ROOT / given["folder"], given["patterns"])
    files, chunks = read_documents(documents, set)
    index.replace(files, chunks)
    rows = index.without_vectors(index.size)
    index.add_vectors(
        [number for number, _ in rows], await embed(embedder, [text for _, text in rows], "passage")
    )
    index.load_vectors()
    names = {content: name for name, content in files.items()}
    headings = {
        (names[content], one.heading.rpartition(" > ")[2]) for content in chunks for one in chunks[content]
    }
    named = [(file, heading) for _, file, heading, *_ in given["questions"]]
    missing = [one for one in named if one not in headings]
    if missing:
        raise SystemExit(f"{_QUESTIONS.name}: there is no text below {missing}")
    return index


def is_answer(passage: Passage | KnowledgeSource, file: str, heading: str) -> bool:
    """Whether a passage stands below a heading."""
    return passage.file == file and passage.heading.rpartition(" > ")[2] == heading


async def judge(given: dict[str, Any], embedder: Embedder, *, show: bool) -> None:
    """Print the line of a set of questions."""
    with tempfile.TemporaryDirectory() as folder:
        index = await build(given, Path(folder) / "index.sqlite", embedder)
        questions = given["questions"]
        vectors = await embed(embedder, [one[0] for one in questions], "query")
        shares: dict[str, str] = {}
        times: list[float] = []
        for way in _WAYS:
            right = 0
            for number, (question, file, heading, *_) in enumerate(questions):
                words = [] if way == "vectors" else content_words(question)
                vector = None if way == "words" else vectors[number]
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


@dataclass(frozen=True)
class Answer:
    """What the agent has answered."""

    text: str
    sources: Sequence[KnowledgeSource]
    """The passages that the language model had."""
    first_ms: float
    """From the question to the first token."""


async def ask(server: str, agent: str, question: str) -> Answer:
    """The answer to the only question of a call."""
    text, sources = "", list[KnowledgeSource]()
    async with asyncio.timeout(_ANSWER_S), connect(server, agent=agent, output="text") as call:
        call.send_text(question)
        async for event in call:
            if isinstance(event, ResponseText):
                text += event.text
            elif isinstance(event, KnowledgeUsed):
                sources = event.sources
            elif isinstance(event, TurnMetrics):
                return Answer(text, sources, event.llm_first_token_ms or math.nan)
    raise SystemExit(f"the call ended before {question!r} was answered")


async def judge_answers(server: Server, questions: Sequence[Sequence[str]], *, show: bool) -> None:
    """Print the shares of right answers with and without the manual."""
    async with asyncio.timeout(_VECTORS_S):
        while "finds passages by vectors too" not in server.state("triton.log").read_text("utf-8"):  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(1)
    print(f"\n{'answers':8} | right                    | passage found | ms to the first token (p50)")
    for agent in _AGENTS:
        right, found, times = 0, 0, []
        for question, file, heading, pattern in questions:
            answer = await ask(server.address, agent, question)
            is_right = re.search(pattern, answer.text, re.IGNORECASE) is not None
            right += is_right
            found += any(is_answer(one, file, heading) for one in answer.sources)
            times.append(answer.first_ms)
            if show:
                print(f"    {'right' if is_right else 'wrong'}: {question!r}: {answer.text!r}")
        low, high = wilson(right, len(questions))
        share = f"{right} of {len(questions)} ({100 * low:.0f}-{100 * high:.0f} %)"
        print(f"{agent:8} | {share:24} | {found:13} | {statistics.median(times):.0f}")


def measure_answers(count: int, *, show: bool) -> None:
    """Start a server with both agents, and ask it."""
    given = tomllib.loads(_QUESTIONS.read_text(encoding="utf-8"))["set"][0]["questions"]
    questions = [one for one in given if len(one) > len(("question", "file", "heading"))][:count]
    for name, value in {
        **describe_machine(),
        **describe_run(["-m", "perf", "knowledge", *sys.argv[1:]]),
    }.items():
        print(f"{name}: {value}")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(_MANUAL, folder)
        for agent, more in _AGENTS.items():
            text = f"instructions = {json.dumps(_INSTRUCTIONS)}\n{more}\n"
            (Path(folder) / f"{agent}.toml").write_text(text, encoding="utf-8")
        environment = {"PARLEY_VOICE_AGENT_AGENTS": folder}
        with local_server("knowledge", environment, "open") as server:
            asyncio.run(judge_answers(server, questions, show=show))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--show", action="store_true", help="print the questions whose answer is not found, and answers"
    )
    parser.add_argument("--answers", type=int, default=0, metavar="N", help="judge answers to N questions")
    args = parser.parse_args()
    if args.answers:
        measure_answers(args.answers, show=args.show)
        return 0
    embedder = LocalEmbedder()
    print("set      | passages | words      | vectors    | both       | ms a search")
    for given in tomllib.loads(_QUESTIONS.read_text(encoding="utf-8"))["set"]:
        asyncio.run(judge(given, embedder, show=args.show))
    return 0

"""What a call costs beside the networks, for 1 to 64 calls: ``make bench-growth``.

The agent is the real one; recogniser, language model and synthesizer are models without networks
(``perf/growth/models``). Every level sends the same number of chunks of audio in a second, so that the
processors are as busy with 64 calls as with one: what differs is only the number of calls. With
``--real-time`` every call sends its audio at the pace of a microphone instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from harness.report import write_json
from harness.stats import percentiles
from rich.console import Console
from rich.table import Table

from parley.errors import ParleyError
from parley.launcher import EmbeddedServer
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.protocol import TurnMetrics
from parley_client import Call, Deadlines, connect
from parley_client.cli.own_server import own_server

AGENT = "voice_agent"
_MODELS = Path(__file__).resolve().parent / "growth" / "models"
_SETTINGS = {
    "PARLEY_VOICE_AGENT_ASR": "parakeet_tdt",
    "PARLEY_VOICE_AGENT_TURN": "none",
    "PARLEY_VOICE_AGENT_MAX_SESSIONS": "64",
    "PARLEY_PARAKEET_TDT_MAX_SESSIONS": "128",
}
_CHUNK = 512  # samples: 32 ms
CHUNK_S = _CHUNK / 16_000
"""Audio of one request."""
_QUESTION, _CYCLE = 24, 160  # chunks that are loud, and until the next question
_PAUSE, _ANSWER_S = 32, 5.0  # chunks after a question, and seconds, by which its answer is over
_SETTLE_S = 2.0


@contextmanager
def _repository(wrap: Callable[[str, Path], str] | None) -> Iterator[Path]:
    """The agent and the models without networks, with the configurations of the real ones."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        originals = ROOT / "model_repository"
        models = {path.name: path / "1" for path in sorted(_MODELS.iterdir())}
        for model, version in {AGENT: originals / AGENT / "1", **models}.items():
            (repository / model).mkdir()
            (repository / model / "configs").symlink_to(originals / model / "configs")
            if wrap is None:
                (repository / model / "1").symlink_to(version)
            else:
                (repository / model / "1").mkdir()
                (repository / model / "1" / "model.py").write_text(wrap(model, version / "model.py"))
        yield repository


@contextmanager
def null_server(
    console: Console,
    name: str,
    settings: Mapping[str, str],
    wrap: Callable[[str, Path], str] | None = None,
) -> Iterator[EmbeddedServer]:
    """A server with such a repository.

    Args:
        console: shows the progress.
        name: of the folder for its state.
        settings: of the models, beside those of this benchmark.
        wrap: the text of a ``model.py`` that loads another one, from a model's name and the file of that one.

    Raises:
        ClientError: it cannot start.
    """
    options = {"profile": TINY_PROFILE, "environment": {**_SETTINGS, **settings}}
    with (
        _repository(wrap) as repository,
        own_server(console, name, model_repository=repository, **options) as server,
    ):
        yield server


@dataclass
class _Caller:
    """One call: a question, and silence while it is answered, again and again."""

    call: Call
    interval_s: float
    turns: int = 0
    answers_ms: list[float] = field(default_factory=list)
    chunks: int = 0
    due: int = 0
    """Questions of which the answer should be over at the end of the level."""
    late_ms: float = 0.0
    _phase: int = field(default_factory=lambda: random.randrange(_CYCLE))
    _asked: list[tuple[int, float]] = field(default_factory=list)
    """Of each question that was sent as a whole: the chunks until its end, and when that was (seconds)."""

    async def speak(self, until: float) -> None:
        noise = np.random.default_rng(0).integers(-8000, 8000, _CHUNK).astype(np.int16)
        silence = np.zeros(_CHUNK, np.int16)
        began = time.perf_counter() + self.interval_s * random.random()
        while (due := began + self.chunks * self.interval_s) < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.late_ms = max(self.late_ms, 1000 * (time.perf_counter() - due))
            place = (self._phase + self.chunks) % _CYCLE
            await self.call.send_audio(noise if place < _QUESTION else silence)
            self.chunks += 1
            if place == _QUESTION - 1 and self.chunks >= _QUESTION:
                self._asked.append((self.chunks, time.perf_counter()))

    def count_due(self) -> int:
        """The questions of which the answer should be over by now."""
        now = time.perf_counter()
        return sum(self.chunks - end >= _PAUSE and now - at_s >= _ANSWER_S for end, at_s in self._asked)

    async def listen(self) -> None:
        async for event in self.call:
            if isinstance(event, TurnMetrics):
                self.turns += 1
                if event.e2e_ms is not None:
                    self.answers_ms.append(event.e2e_ms)


@dataclass
class Level:
    """What one number of calls has cost."""

    calls: int
    chunks: int
    questions: int
    """Those that there was time to answer."""
    unanswered: int
    """Those of them without an answer, not counting one of each call, which may be late."""
    turns: int
    wall_s: float
    server_cpu_s: dict[str, float]
    client_cpu_s: float
    round_trips_ms: list[float]
    """Of the chunks that were acknowledged."""
    answers_ms: list[float]
    """From the end of the question to the first audio."""
    late_ms: float
    """The latest chunk behind its time."""

    @property
    def is_answered(self) -> bool:
        """Whether the agent has answered, and no question was left out."""
        return bool(self.answers_ms) and not self.unanswered

    @property
    def server_us(self) -> float:
        """Processor time of the server for one chunk (microseconds)."""
        return 1e6 * sum(self.server_cpu_s.values()) / self.chunks

    def us_of(self, model: str) -> float:
        """Processor time of one model's processes for one chunk (microseconds)."""
        return 1e6 * sum(s for name, s in self.server_cpu_s.items() if name.startswith(model)) / self.chunks


async def measure(server: EmbeddedServer, calls: int, interval_s: float, seconds: float) -> Level:
    """Hold ``calls`` calls for ``seconds``, each with a chunk every ``interval_s``.

    Raises:
        ParleyError: a call could not be opened, or was lost.
    """
    async with AsyncExitStack() as stack:
        callers = []
        for _ in range(calls):
            call = await stack.enter_async_context(
                connect(server.endpoints.grpc, deadlines=Deadlines(connect_s=30))
            )
            callers.append(_Caller(call, interval_s))
        listening = [asyncio.create_task(caller.listen()) for caller in callers]
        await asyncio.sleep(_SETTLE_S)
        before, began, client = cpu_times(server), time.perf_counter(), time.process_time()
        await asyncio.gather(*(caller.speak(began + seconds) for caller in callers))
        after, wall_s, client = cpu_times(server), time.perf_counter() - began, time.process_time() - client
        for caller in callers:
            caller.due = caller.count_due()
        for task in listening:
            task.cancel()
        for end in await asyncio.gather(*listening, return_exceptions=True):
            if isinstance(end, Exception):
                raise end
    return Level(
        calls,
        sum(caller.chunks for caller in callers),
        sum(caller.due for caller in callers),
        sum(max(0, caller.due - 1 - len(caller.answers_ms)) for caller in callers),
        sum(caller.turns for caller in callers),
        wall_s,
        {name: after[name] - before[name] for name in after},
        client,
        [value for caller in callers for value in caller.call.stats.round_trips_ms],
        [value for caller in callers for value in caller.answers_ms],
        max(caller.late_ms for caller in callers),
    )


def cpu_times(server: EmbeddedServer) -> Counter[str]:
    """Processor time so far by process of the server (seconds)."""
    totals: Counter[str] = Counter()
    for process in server.usage():
        totals[process.name] += process.cpu_s
    return totals


def _print(console: Console, levels: list[Level]) -> None:
    table = Table(
        title="processor time for 32 ms of audio, µs; acknowledgements, ms", title_justify="left", box=None
    )
    headings = ("calls", "turns", "server", "of first", "triton", "agent", "asr", "client")
    for heading in (*headings, "p50", "p95", "p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for level in levels:
        waits = percentiles(level.round_trips_ms) or (0.0, 0.0, 0.0)
        table.add_row(
            str(level.calls),
            str(level.turns),
            f"{level.server_us:.0f}",
            f"{level.server_us / levels[0].server_us:.0%}",
            f"{level.us_of('tritonserver'):.0f}",
            f"{level.us_of('voice_agent'):.0f}",
            f"{level.us_of('parakeet_tdt'):.0f}",
            f"{1e6 * level.client_cpu_s / level.chunks:.0f}",
            *(f"{wait:.1f}" for wait in waits),
        )
    console.print(table)


def all_answered(console: Console, levels: Iterable[Level]) -> bool:
    """Name the levels in which questions were not answered; False: there are some."""
    failed = [level for level in levels if not level.is_answered]
    for level in failed:
        console.print(
            f"{level.calls} calls: {len(level.answers_ms)} answers to {level.questions} questions",
            style="red",
        )
    return not failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", default="1,2,4,8,16,32,64", help="levels (default: %(default)s)")
    parser.add_argument(
        "--chunks", type=float, default=128.0, help="of all calls, in a second (default: %(default)s)"
    )
    parser.add_argument(
        "--real-time", action="store_true", help="every call at the pace of a microphone: 31 chunks/s"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of a level (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    try:
        args.calls = [int(part) for part in args.calls.split(",")]
    except ValueError:
        parser.error("--calls takes numbers with commas between them")
    if min(args.calls) < 1 or args.chunks <= 0 or args.seconds <= 0:
        parser.error("at least one call, and more than no chunks and seconds")
    return args


def main() -> int:
    """Measure all levels; the exit status is 1 if questions were not answered or the server failed."""
    args, console = _arguments(), Console()
    try:
        with null_server(console, "bench-growth", {}) as server:
            asyncio.run(measure(server, 1, CHUNK_S, 5.0))  # caches are filled before anything is measured
            levels = []
            for calls in args.calls:
                interval_s = CHUNK_S if args.real_time else calls / args.chunks
                console.print(f"{calls} calls …")
                levels.append(asyncio.run(measure(server, calls, interval_s, args.seconds)))
    except ParleyError as error:
        console.print(f"bench-growth: {error}", style="red", markup=False)
        return 1
    _print(console, levels)
    if args.json:
        figures = [{**vars(level), "server_us_per_chunk": level.server_us} for level in levels]
        write_json(args.json, {"cpus": os.cpu_count(), "levels": figures})
    return 0 if all_answered(console, levels) else 1


if __name__ == "__main__":
    sys.exit(main())

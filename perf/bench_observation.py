"""What metrics, traces and logs cost, on against off in one run: ``make bench-observation``.

Calls with models without networks (``perf/growth``) at the pace of microphones. "On" is everything at once:
metrics that are scraped, spans of agent and models sent to a collector, and logs as JSON. "Off" is
nothing of it. Both are measured by turns, each on a server of its own.

Two servers differ by more than observation costs. So a last server, with everything on, adds up the
processor time of the calls that observe (``perf/observation/probe.py``), in every process of a model. A
metric is written by two processes: what one costs both is measured by writing many.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench_growth import AGENT, CHUNK_S, Level, all_answered, cpu_times, measure, null_server
from harness.collector import collecting
from harness.report import make_table, write_json
from harness.stats import percentile
from observation import probe
from rich.console import Console

from parley.errors import ParleyError
from parley.launcher import EmbeddedServer
from parley_client.errors import ClientError

_SCRAPE_S = 5.0
_PAGE_S = 5.0  # for one page
_IDLE_S = 5.0
_WRITES, _WRITES_S = 20_000, 120.0  # metrics, and the time for them
_WRITTEN = "metrics written"
_INLINE = ("metrics", "spans", "logs")  # in the thread that serves
_PROBE = Path(__file__).resolve().parent / "observation"
_OFF = {"PARLEY_METRICS": "false"}


@contextmanager
def _scraped(address: str) -> Iterator[None]:
    """Read a page of metrics at the interval of a Prometheus.

    Raises:
        ClientError: at the end of the block, if the page could not be read each time.
    """
    done = threading.Event()
    scrapes = 0
    failure: Exception | None = None

    def scrape() -> None:
        nonlocal scrapes, failure
        try:
            while True:
                _read_page(address)
                scrapes += 1
                if done.wait(_SCRAPE_S):
                    return
        except (OSError, http.client.HTTPException, ClientError) as error:
            failure = error

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(2 * _PAGE_S)
    if failure is not None or thread.is_alive() or not scrapes:
        raise ClientError(f"metrics were read {scrapes} times, and then not: {failure or 'no end'}")


def _read_page(address: str) -> None:
    with closing(http.client.HTTPConnection(address, timeout=_PAGE_S)) as connection:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        response.read()
        if response.status != http.HTTPStatus.OK:
            raise ClientError(f"status {response.status}")


def _probing(folder: Path, model: str, original: Path) -> str:
    """A ``model.py`` that measures the process, and then loads the original one."""
    return (
        "import importlib.util, pathlib, sys\n"
        f"sys.path.append({str(_PROBE)!r})\n"
        "import probe\n"
        f"probe.install(pathlib.Path({str(folder)!r}), {model == AGENT})\n"
        f"spec = importlib.util.spec_from_file_location('original', {str(original)!r})\n"
        "original = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(original)\n"
        "TritonPythonModel = original.TritonPythonModel\n"
    )


@dataclass
class _Sums:
    """What the parts of observation cost in all processes of the models."""

    level: Level
    write_us: float
    """Processor time of both processes for one metric that is written (microseconds)."""
    calls: Counter[str]
    seconds: Counter[str]

    def us_of(self, part: str) -> float:
        """Processor time of a part for one chunk of audio (microseconds)."""
        if part == _WRITTEN:
            return self.write_us * self.calls[part] / self.level.chunks
        return 1e6 * self.seconds[part] / self.level.chunks


def _add_up(console: Console, args: argparse.Namespace, settings: Mapping[str, str]) -> _Sums:
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(
            null_server(console, "bench-observation", settings, partial(_probing, folder))
        )
        asyncio.run(measure(server, 1, CHUNK_S, 5.0))
        write_us = _cost_of_write(server, folder)
        stack.enter_context(_scraped(server.endpoints.metrics))
        before = _read_sums(folder)
        level = asyncio.run(measure(server, args.calls, CHUNK_S, args.seconds))
        after = _read_sums(folder)
    calls, seconds = (last - first for first, last in zip(before, after, strict=True))
    return _Sums(level, write_us, calls, seconds)


def _cost_of_write(server: EmbeddedServer, folder: Path) -> float:
    """Processor time of all processes for one metric that is written (microseconds), beside an idle server's.

    Raises:
        ClientError: the metrics were not written.
    """
    time.sleep(_IDLE_S)
    before = cpu_times(server).total()
    time.sleep(_IDLE_S)
    idle_s = (cpu_times(server).total() - before) / _IDLE_S
    done = folder / probe.WRITES_DONE
    begin, before = time.monotonic(), cpu_times(server).total()
    (folder / probe.WRITES_ASKED).write_text(str(_WRITES))
    while not done.exists():
        if time.monotonic() - begin > _WRITES_S:
            raise ClientError(f"{_WRITES} metrics were not written within {_WRITES_S:g} s")
        time.sleep(0.1)
    used_s = cpu_times(server).total() - before - idle_s * (time.monotonic() - begin)
    return 1e6 * used_s / _WRITES


def _read_sums(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Calls and seconds by part, of all processes."""
    time.sleep(2 * probe.INTERVAL_S)
    calls: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for path in folder.glob("*.json"):
        for part, (count, time_s) in json.loads(path.read_text()).items():
            calls[part] += count
            seconds[part] += time_s
    return calls, seconds


def _print_sums(console: Console, sums: _Sums, off_us: float) -> None:
    table = make_table("what it is made of", "", "calls", "µs for a chunk", "of all processors")
    chunks_in_s = sums.level.chunks / sums.level.wall_s

    def add(name: str, calls: str, us: float) -> None:
        table.add_row(name, calls, f"{us:.1f}", f"{us * chunks_in_s / 1e6 / (os.cpu_count() or 1):.2%}")

    parts = sorted(sums.calls, key=sums.us_of, reverse=True)
    for part in parts:
        add(part, str(sums.calls[part]), sums.us_of(part))
    total = sum(map(sums.us_of, parts))
    add("together", "", total)
    console.print(table)
    console.print(f"{total / off_us:.2%} of the server's processor time for a chunk without observation")
    waited = sum(sums.seconds[part] for part in _INLINE) / max(1, sums.level.turns)
    console.print(
        f"{1000 * waited:.2f} ms of a turn is spent in calls that record; all others are of threads"
    )


@dataclass
class _Side:
    """All levels of one setting."""

    name: str
    levels: list[Level]

    @property
    def server_us(self) -> float:
        """Processor time of the server for one chunk (microseconds)."""
        chunks = sum(level.chunks for level in self.levels)
        return 1e6 * sum(sum(level.server_cpu_s.values()) for level in self.levels) / chunks

    def late(self, share: float) -> tuple[float, float]:
        """A percentile of acknowledgements and of answers (milliseconds)."""
        waits = [value for level in self.levels for value in level.round_trips_ms]
        answers = [value for level in self.levels for value in level.answers_ms]
        return percentile(waits, share) or 0.0, percentile(answers, share) or 0.0


def _measure(console: Console, args: argparse.Namespace, settings: Mapping[str, str] | None) -> Level:
    """One turn; ``settings`` switch everything on, None: it is off."""
    with ExitStack() as stack:
        server = stack.enter_context(
            null_server(console, "bench-observation", _OFF if settings is None else settings)
        )
        asyncio.run(measure(server, 1, CHUNK_S, 5.0))  # caches are filled before anything is measured
        if settings is not None:
            stack.enter_context(_scraped(server.endpoints.metrics))
        return asyncio.run(measure(server, args.calls, CHUNK_S, args.seconds))


def _print(console: Console, off: _Side, on: _Side, calls: int) -> None:
    table = make_table(f"{calls} calls", "", off.name, on.name, "difference")
    added = on.server_us - off.server_us
    table.add_row(
        "server's processor time for a chunk, µs",
        f"{off.server_us:.0f}",
        f"{on.server_us:.0f}",
        f"{added:+.0f} ({added / off.server_us:+.1%})",
    )
    share = added / 1e6 / CHUNK_S * calls / (os.cpu_count() or 1)
    table.add_row("… as a share of all processors", "", "", f"{share:+.2%}")
    for quantile in (0.5, 0.95):
        for row, before, after in zip(
            ("a chunk to its acknowledgement", "end of speech to first audio"),
            off.late(quantile),
            on.late(quantile),
            strict=True,
        ):
            table.add_row(
                f"{row}, p{100 * quantile:.0f}, ms", f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"
            )
    console.print(table)


def main() -> int:
    """Measure both by turns.

    The exit status is 1 if questions were not answered, metrics could not be read, no span was exported, or a
    server failed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args, console = parser.parse_args(), Console()
    off, on = _Side("off", []), _Side("on", [])
    try:
        with collecting() as collector:
            settings = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "PARLEY_LOG_FORMAT": "json",
            }
            for turn in range(args.turns):
                # The order changes: what was measured before may still take processor time.
                for side in (off, on) if turn % 2 else (on, off):
                    console.print(f"turn {turn + 1}: {side.name} …")
                    side.levels.append(_measure(console, args, settings if side is on else None))
            console.print("sums …")
            sums = _add_up(console, args, settings)
    except ParleyError as error:
        console.print(f"bench-observation: {error}", style="red", markup=False)
        return 1
    _print(console, off, on, args.calls)
    _print_sums(console, sums, off.server_us)
    console.print(f"{collector.exports} exports of spans")
    if args.json:
        figures = {side.name: [vars(level) for level in side.levels] for side in (off, on)}
        level = {**vars(sums), "level": vars(sums.level)}
        write_json(args.json, {"cpus": os.cpu_count(), **figures, "sums": level})
    return 0 if all_answered(console, [*off.levels, *on.levels, sums.level]) and collector.exports else 1


if __name__ == "__main__":
    sys.exit(main())

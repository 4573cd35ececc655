"""What metrics, traces and logs cost, on against off in one run: ``make bench-observation``.

Calls with models without networks (``perf/growth``) at the pace of microphones. "On" is everything at once:
metrics that are scraped, spans of agent and models sent to a collector, and logs as JSON. "Off" is
nothing of it. Both are measured by turns, each on a server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_growth import CHUNK_S, Level, all_answered, measure, null_server
from rich.console import Console
from rich.table import Table

from parley.errors import ParleyError
from parley_client.cli.turns import percentile
from parley_client.errors import ClientError

_SCRAPE_S = 5.0
_PAGE_S = 5.0  # for one page
_OFF = {"PARLEY_METRICS": "false"}


class _Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans by OTLP over HTTP, and drops them."""

    received = 0

    def do_POST(self) -> None:
        """Count an export."""
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).received += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _collector() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
    table = Table(title=f"{calls} calls", title_justify="left")
    table.add_column("")
    for side in (off, on):
        table.add_column(side.name, justify="right")
    table.add_column("difference", justify="right")
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
        with _collector() as collector:
            settings = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "PARLEY_LOG_FORMAT": "json",
            }
            for turn in range(args.turns):
                # The order changes: what was measured before may still take processor time.
                for side in (off, on) if turn % 2 else (on, off):
                    console.print(f"turn {turn + 1}: {side.name} …")
                    side.levels.append(_measure(console, args, settings if side is on else None))
    except ParleyError as error:
        console.print(f"bench-observation: {error}", style="red", markup=False)
        return 1
    _print(console, off, on, args.calls)
    console.print(f"{_Collector.received} exports of spans")
    if args.json:
        figures = {side.name: [vars(level) for level in side.levels] for side in (off, on)}
        args.json.write_text(json.dumps({"cpus": os.cpu_count(), **figures}, indent=1))
    return 0 if all_answered(console, [*off.levels, *on.levels]) and _Collector.received else 1


if __name__ == "__main__":
    sys.exit(main())

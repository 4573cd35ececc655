#!/usr/bin/env python
"""Starts Prometheus beside a server and a gateway, with the project's alerts, and Phoenix for their traces.

    make serve &  make gateway &  make observe

The dashboards in deploy/grafana are for a Grafana with this Prometheus as its source. Phoenix is started if
``scripts/setup --phoenix`` has installed it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PHOENIX = ROOT / ".venv-phoenix" / "bin" / "phoenix"
_READY_S = 30.0
_PHOENIX_READY_S = 180.0
"""It makes its database first."""
_WATCH_S = 0.2
_STOP_S = 10.0


def find_program(name: str) -> str:
    """Path of ``prometheus``, ``promtool`` or ``amtool``.

    Raises:
        FileNotFoundError: it is neither on the PATH nor in ``.cache``.
    """
    packages = (ROOT / ".cache" / package for package in ("prometheus", "prometheus-alertmanager"))
    unpacked = [str(own) for package in packages if (own := package / "usr" / "bin" / name).exists()]
    path = shutil.which(name) or next(iter(unpacked), None)
    if path is None:
        raise FileNotFoundError(f"{name} is missing. Run: scripts/setup --prometheus")
    return path


def render_config(
    server: str, gateway: str, *, interval: str, key_file: Path | None = None
) -> dict[str, Any]:
    """Prometheus' configuration; YAML is a superset of what this is written as.

    Args:
        server: host and port of Triton's metrics; empty: none.
        gateway: of the gateway; empty: none.
        interval: between two scrapes, such as ``5s``.
        key_file: has a key of the gateway with the scope ``admin``.
    """
    jobs: list[dict[str, Any]] = []
    if server:
        jobs.append({"job_name": "parley", "static_configs": [{"targets": [server]}]})
    if gateway:
        job: dict[str, Any] = {"job_name": "parley-gateway", "static_configs": [{"targets": [gateway]}]}
        if key_file is not None:
            job["authorization"] = {"credentials_file": str(key_file.resolve())}
        jobs.append(job)
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(ALERTS)],
        "scrape_configs": jobs,
    }


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    ready_url: str,
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    ready_s: float = _READY_S,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the block is left.

    Args:
        name: for messages.
        command: starts it.
        ready_url: answers when it is ready.
        log: gets what it writes.
        environment: variables besides those of this process.
        ready_s: seconds until then.

    Raises:
        RuntimeError: it does not become ready; the message has the end of its log.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    try:
        end = time.monotonic() + ready_s
        while not _answers(ready_url):
            if time.monotonic() > end or process.poll() is not None:
                last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                raise RuntimeError(f"{name} did not start:\n" + "\n".join(last))
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0):  # noqa: S310 - this machine
            return True
    except OSError:
        return False


@contextmanager
def prometheus(config: dict[str, Any], folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Prometheus.

    Args:
        config: see :func:`render_config`.
        folder: for its data and its log.
        address: where its page listens.
    """
    file = folder / "prometheus.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    command = [
        find_program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.size=1GB",
    ]
    with running("Prometheus", command, f"http://{address}/-/ready", folder / "prometheus.log") as process:
        yield process


@contextmanager
def phoenix(folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """An Arize Phoenix, which takes traces by OTLP over HTTP and shows them.

    Args:
        folder: for its data and its log.
        address: where its page, its interface and its collector listen.
    """
    host, _, port = address.rpartition(":")
    environment = {
        "PHOENIX_HOST": host,
        "PHOENIX_PORT": port,
        "PHOENIX_GRPC_PORT": free_address().rpartition(":")[2],
        "PHOENIX_WORKING_DIR": str(folder / "phoenix"),
        # Nothing leaves this machine.
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    }
    url, log = f"http://{address}/healthz", folder / "phoenix.log"
    command = [str(PHOENIX), "serve"]
    with running("Phoenix", command, url, log, environment=environment, ready_s=_PHOENIX_READY_S) as process:
        yield process


def free_address() -> str:
    """An address of this machine where no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(
        prog="make observe", description="Start Prometheus, and Phoenix if it is there, beside the server."
    )
    parser.add_argument("--server", default="127.0.0.1:8002", help="Triton's metrics (default: %(default)s)")
    parser.add_argument("--gateway", default="127.0.0.1:8080", help="the gateway (default: %(default)s)")
    parser.add_argument("--gateway-key-file", type=Path, help="file with a key of the scope admin")
    parser.add_argument("--listen", default="127.0.0.1:9090", help="Prometheus' page (default: %(default)s)")
    parser.add_argument("--interval", default="5s", help="between two scrapes (default: %(default)s)")
    parser.add_argument(
        "--phoenix", default="127.0.0.1:6006", help='where traces go; "": nowhere (default: %(default)s)'
    )
    arguments = parser.parse_args(argv)
    config = render_config(
        arguments.server,
        arguments.gateway,
        interval=arguments.interval,
        key_file=arguments.gateway_key_file,
    )
    with tempfile.TemporaryDirectory(prefix="parley-observe-") as folder, ExitStack() as programs:
        try:
            started = [programs.enter_context(prometheus(config, Path(folder), arguments.listen))]
            print(f"Prometheus: http://{arguments.listen}/targets and /alerts; Ctrl-C ends it")
            print(f"dashboards for Grafana: {ROOT / 'deploy' / 'grafana'}", flush=True)
            if arguments.phoenix and PHOENIX.exists():
                print("starting Phoenix, which takes up to a minute", flush=True)
                started.append(programs.enter_context(phoenix(Path(folder), arguments.phoenix)))
            print(explain_traces(arguments.phoenix), flush=True)
            while (ended := next((one.poll() for one in started if one.poll() is not None), None)) is None:
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return 130
        except (FileNotFoundError, RuntimeError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return ended


def explain_traces(address: str) -> str:
    """Where traces are, and how a server and a gateway send theirs there.

    Args:
        address: of Phoenix; empty: it is not wanted.
    """
    if not address:
        return "traces: none (docs/observability.md#traces)"
    if not PHOENIX.exists():
        return "traces: scripts/setup --phoenix gets Arize Phoenix, which shows them (docs/observability.md)"
    return (
        f"traces: http://{address}, of a server and a gateway that are started with\n"
        f"  OTEL_EXPORTER_OTLP_ENDPOINT=http://{address}"
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""Starts Prometheus beside a server and a gateway, with the project's alerts, and Phoenix for their traces.

    make serve &  make gateway &  make observe

The dashboards in deploy/grafana are for a Grafana with this Prometheus as its source. Phoenix is started if
``scripts/setup --phoenix`` has installed it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.servers import Program

# The harness is imported late: the tests of deploy find programs here without its packages.
ROOT = Path(__file__).resolve().parents[1]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PHOENIX = ROOT / ".venv-phoenix" / "bin" / "phoenix"
_READY_S = 30.0
_PHOENIX_READY_S = 180.0
"""It makes its database first."""
_WATCH_S = 0.2


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


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0):  # noqa: S310 - this machine
            return True
    except OSError:
        return False


def prometheus(config: dict[str, Any], folder: Path, address: str) -> AbstractAsyncContextManager[Program]:
    """A Prometheus."""
    from harness.servers import local_program  # noqa: PLC0415

    file = folder / "prometheus.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    command = [
        find_program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.size=1GB",
    ]
    return local_program(
        "prometheus", command, lambda: _answers(f"http://{address}/-/ready"), folder, ready_s=_READY_S
    )


def phoenix(folder: Path, address: str) -> AbstractAsyncContextManager[Program]:
    """An Arize Phoenix, which takes traces by OTLP over HTTP and shows them."""
    from harness.servers import local_program  # noqa: PLC0415

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
    return local_program(
        "phoenix",
        [PHOENIX, "serve"],
        lambda: _answers(f"http://{address}/healthz"),
        folder,
        ready_s=_PHOENIX_READY_S,
        environment=environment,
    )


def free_address() -> str:
    """An address of this machine where no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status for the shell."""
    from harness.program import run_program  # noqa: PLC0415

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
    return run_program("observe", lambda _: asyncio.run(_observe(arguments)), FileNotFoundError)


async def _observe(arguments: argparse.Namespace) -> int:
    """Run until a program ends; returns its exit status."""
    config = render_config(
        arguments.server,
        arguments.gateway,
        interval=arguments.interval,
        key_file=arguments.gateway_key_file,
    )
    with tempfile.TemporaryDirectory(prefix="parley-observe-") as folder:
        async with AsyncExitStack() as programs:
            begin = programs.enter_async_context
            started = [await begin(prometheus(config, Path(folder), arguments.listen))]
            print(f"Prometheus: http://{arguments.listen}/targets and /alerts; Ctrl-C ends it")
            print(f"dashboards for Grafana: {ROOT / 'deploy' / 'grafana'}", flush=True)
            if arguments.phoenix and PHOENIX.exists():
                print("starting Phoenix, which takes up to a minute", flush=True)
                started.append(await begin(phoenix(Path(folder), arguments.phoenix)))
            print(explain_traces(arguments.phoenix), flush=True)
            while True:
                await asyncio.sleep(_WATCH_S)
                if ended := [one.status for one in started if one.status is not None]:
                    return ended[0]


def explain_traces(address: str) -> str:
    """Where traces are, and how a server and a gateway send theirs there."""
    if not address:
        return "traces: none (docs/observability.md#traces)"
    if not PHOENIX.exists():
        return "traces: scripts/setup --phoenix gets Arize Phoenix, which shows them (docs/observability.md)"
    return (
        f"traces: http://{address}, of a server and a gateway that are started with\n"
        f"  OTEL_EXPORTER_OTLP_ENDPOINT=http://{address}"
    )

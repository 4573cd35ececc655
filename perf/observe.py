#!/usr/bin/env python
"""Starts Prometheus beside a server and a gateway, with the project's alerts.

    make serve &  make gateway &  make observe

The dashboards in deploy/grafana are for a Grafana with this Prometheus as its source.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
_READY_S = 30.0
_STOP_S = 10.0


def find_program(name: str) -> str:
    """Path of ``prometheus`` or ``promtool``.

    Raises:
        FileNotFoundError: it is neither on the PATH nor in ``.cache``.
    """
    own = ROOT / ".cache" / "prometheus" / "usr" / "bin" / name
    path = shutil.which(name) or (str(own) if own.exists() else None)
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


class Prometheus:
    """A Prometheus of its own, from entering until leaving.

    Args:
        config: see :func:`render_config`.
        folder: for its data and its log.
        address: where its page listens.
    """

    def __init__(self, config: dict[str, Any], folder: Path, address: str) -> None:
        self.address = address
        self._config = config
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            RuntimeError: it does not become ready; the message has the end of its log.
        """
        config, log = self._folder / "prometheus.yaml", self._folder / "prometheus.log"
        config.write_text(json.dumps(self._config), encoding="utf-8")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    find_program("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.address}",
                    "--storage.tsdb.retention.size=1GB",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._await_ready(log)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now.

        Raises:
            ValueError: Prometheus refuses it.
        """
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=_STOP_S) as response:
                series: list[dict[str, Any]] = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}: {error.read().decode(errors='replace')}") from error
        return series

    def wait(self) -> int:
        """Wait for its end; returns its exit status."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Stop it; does nothing when it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_ready(self, log: Path) -> None:
        assert self._process is not None
        end = time.monotonic() + _READY_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=1.0):
                    return
            except OSError:
                time.sleep(0.05)
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise RuntimeError("Prometheus did not start:\n" + "\n".join(last))


def free_address() -> str:
    """An address of this machine where no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(prog="make observe", description="Start Prometheus beside the server.")
    parser.add_argument("--server", default="127.0.0.1:8002", help="Triton's metrics (default: %(default)s)")
    parser.add_argument("--gateway", default="127.0.0.1:8080", help="the gateway (default: %(default)s)")
    parser.add_argument("--gateway-key-file", type=Path, help="file with a key of the scope admin")
    parser.add_argument("--listen", default="127.0.0.1:9090", help="Prometheus' page (default: %(default)s)")
    parser.add_argument("--interval", default="5s", help="between two scrapes (default: %(default)s)")
    arguments = parser.parse_args(argv)
    config = render_config(
        arguments.server,
        arguments.gateway,
        interval=arguments.interval,
        key_file=arguments.gateway_key_file,
    )
    with tempfile.TemporaryDirectory(prefix="parley-observe-") as folder:
        try:
            with Prometheus(config, Path(folder), arguments.listen) as prometheus:
                print(f"Prometheus: http://{arguments.listen}/targets and /alerts; Ctrl-C ends it")
                print(f"dashboards for Grafana: {ROOT / 'deploy' / 'grafana'}")
                return prometheus.wait()
        except KeyboardInterrupt:
            return 130
        except (FileNotFoundError, RuntimeError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    raise SystemExit(main())

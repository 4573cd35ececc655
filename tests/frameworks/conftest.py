"""A Triton server and a gateway, each in a process of its own, for clients that know nothing of either.

``PARLEY_TEST_TRITON`` names the gRPC address of a server that runs already, and ``PARLEY_TEST_GATEWAY`` the URL of
a gateway, which saves their start.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
START_S = 120.0
STOP_S = 30.0


@pytest.fixture(scope="session")
def triton(tmp_path_factory):
    """The gRPC address of a server with the cpu profile's models: ``host:port``."""
    if given := os.environ.get("PARLEY_TEST_TRITON"):
        yield given
        return
    log = tmp_path_factory.mktemp("triton") / "log"
    command = ["-m", "parley.launcher", "--name", "frameworks", "--any-port"]
    with running(command, log) as process:
        yield wait_for(process, log, lambda: _found(r"^ready grpc=(\S+)", log))


@pytest.fixture(scope="session")
def gateway(triton, tmp_path_factory):
    """The address of a gateway in front of that server: ``http://host:port``."""
    if given := os.environ.get("PARLEY_TEST_GATEWAY"):
        yield given
        return
    log = tmp_path_factory.mktemp("gateway") / "log"
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {"PARLEY_GATEWAY_LISTEN_PORT": str(port), "PARLEY_GATEWAY_SERVERS_ADDRESSES": triton}
    with running(["-m", "parley_client", "gateway"], log, **settings) as process:
        yield wait_for(process, log, lambda: url if _answers(f"{url}/readyz") else None)


@contextmanager
def running(command, log, **environment):
    """A Python process of the serving environment, until it has ended; ``log`` gets what it prints."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(PYTHON), *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(process, log, look):
    """What ``look`` finds, once it finds something."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        if process.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"{' '.join(process.args[1:])} did not start:\n{log.read_text()[-2000:]}")


def _found(pattern, log):
    match = re.search(pattern, log.read_text(), re.MULTILINE)
    return match[1] if match else None


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

"""A Triton server and a gateway, each in a process of its own, for clients that know nothing of either.

``PARLEY_TEST_TRITON`` names the gRPC address of a server that runs already, and ``PARLEY_TEST_GATEWAY`` the
URL of a gateway, which saves their start.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority
from realtime_call import INSTRUCTIONS
from redis_server import RedisServer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
START_S = 120.0
STOP_S = 30.0
AGENT = "restaurant"
"""The agent that the server defines besides its own."""


@pytest.fixture(scope="session")
def triton(tmp_path_factory):
    """The gRPC address of a server with the tiny profile's models: ``host:port``."""
    if given := os.environ.get("PARLEY_TEST_TRITON"):
        yield given
        return
    log = tmp_path_factory.mktemp("triton") / "log"
    agents = tmp_path_factory.mktemp("agents")
    (agents / f"{AGENT}.toml").write_text(f'instructions = "{INSTRUCTIONS}"\n')
    command = ["-m", "parley.launcher", "--profile", "tiny", "--name", "frameworks", "--any-port"]
    with running(command, log, PARLEY_VOICE_AGENT_AGENTS=str(agents)) as process:
        yield wait_for(process, log, lambda: _found(r"^ready grpc=(\S+)", log))


@pytest.fixture(scope="session")
def gateway(triton, tmp_path_factory):
    """The address of a gateway in front of that server: ``http://host:port``."""
    if given := os.environ.get("PARLEY_TEST_GATEWAY"):
        yield given
        return
    with open_gateway(triton, tmp_path_factory.mktemp("gateway")) as (url, _):
        yield url


@pytest.fixture(scope="session")
def secure_gateway(triton, certificate, tmp_path_factory):
    """The address of one that speaks TLS: ``https://127.0.0.1:port``."""
    chain, key = certificate
    settings = {
        "PARLEY_GATEWAY_LISTEN_CERTIFICATE": str(chain),
        "PARLEY_GATEWAY_LISTEN_KEY": str(key),
    }
    with open_gateway(triton, tmp_path_factory.mktemp("secure-gateway"), **settings) as (url, _):
        yield url


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """PEM files of a certificate for 127.0.0.1 with its authority's, and of its key."""
    folder = tmp_path_factory.mktemp("certificate")
    authority = Authority()
    chain, key = authority.issue("127.0.0.1")
    (folder / "key.pem").write_bytes(key)
    (folder / "chain.pem").write_bytes(chain + authority.certificate)
    return folder / "chain.pem", folder / "key.pem"


@pytest.fixture(scope="session")
def agent_gateway(triton, tmp_path_factory):
    """The address of a gateway, and a key of it that may call :data:`AGENT` and no other."""
    folder = tmp_path_factory.mktemp("agent-gateway")
    command = [str(PYTHON), "-m", "parley_client", "gateway", "keys", "new", "--agent", AGENT]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (folder / "keys.toml").write_text(made.stdout)
    settings = {"PARLEY_GATEWAY_SECURITY_KEYS_FILE": str(folder / "keys.toml")}
    with open_gateway(triton, folder, **settings) as (url, _):
        yield url, made.stderr.split()[-1]


@pytest.fixture
async def kept_gateways(triton, tmp_path):
    """Two gateways, each its address and its process, that keep calls in one Redis."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    keys = tmp_path / "takeover.keys"
    keys.write_bytes(base64.b64encode(secrets.token_bytes(32)) + b"\n")
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with RedisServer(program, port) as redis:
        settings = {
            "PARLEY_GATEWAY_TAKEOVER_STORE": redis.url,
            "PARLEY_GATEWAY_TAKEOVER_KEYS_FILE": str(keys),
        }
        with (
            open_gateway(triton, folders[0], **settings) as one,
            open_gateway(triton, folders[1], **settings) as two,
        ):
            yield one, two


@contextmanager
def open_gateway(triton, folder, **settings):
    """A gateway in a process of its own; its URL, and the process."""
    log = folder / "log"
    settings |= {"PARLEY_GATEWAY_LISTEN_PORT": "0", "PARLEY_GATEWAY_SERVERS_ADDRESSES": triton}
    with running(["-m", "parley_client", "gateway"], log, **settings) as process:
        yield wait_for(process, log, lambda: _found(r"^ready http=(\S+)", log)), process


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

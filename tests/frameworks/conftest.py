"""A Triton server and a gateway, each in a process of its own, for clients that know nothing of either.

``PARLEY_TEST_TRITON`` names the gRPC address of a server that runs already, and ``PARLEY_TEST_GATEWAY`` the
URL of a gateway, which saves their start.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
START_S = 120.0
STOP_S = 30.0


@pytest.fixture(scope="session")
def triton(tmp_path_factory):
    """The gRPC address of a server with the tiny profile's models: ``host:port``."""
    if given := os.environ.get("PARLEY_TEST_TRITON"):
        yield given
        return
    log = tmp_path_factory.mktemp("triton") / "log"
    command = ["-m", "parley.launcher", "--profile", "tiny", "--name", "frameworks", "--any-port"]
    with running(command, log) as process:
        yield wait_for(process, log, lambda: _found(r"^ready grpc=(\S+)", log))


@pytest.fixture(scope="session")
def gateway(triton, tmp_path_factory):
    """The address of a gateway in front of that server: ``http://host:port``."""
    if given := os.environ.get("PARLEY_TEST_GATEWAY"):
        yield given
        return
    with _gateway(triton, tmp_path_factory.mktemp("gateway")) as url:
        yield url


@pytest.fixture(scope="session")
def secure_gateway(triton, certificate, tmp_path_factory):
    """The address of one that speaks TLS: ``https://127.0.0.1:port``."""
    chain, key = certificate
    settings = {
        "PARLEY_GATEWAY_LISTEN_CERTIFICATE": str(chain),
        "PARLEY_GATEWAY_LISTEN_KEY": str(key),
    }
    with _gateway(triton, tmp_path_factory.mktemp("secure-gateway"), **settings) as url:
        yield url


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """PEM files of a certificate for 127.0.0.1, which is its own authority, and of its key."""
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, pkcs8, plain))
    (folder / "chain.pem").write_bytes(signed.public_bytes(pem))
    return folder / "chain.pem", folder / "key.pem"


@contextmanager
def _gateway(triton, folder, **settings):
    """A gateway in a process of its own; its URL."""
    log = folder / "log"
    settings |= {"PARLEY_GATEWAY_LISTEN_PORT": "0", "PARLEY_GATEWAY_SERVERS_ADDRESSES": triton}
    with running(["-m", "parley_client", "gateway"], log, **settings) as process:
        yield wait_for(process, log, lambda: _found(r"^ready http=(\S+)", log))


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

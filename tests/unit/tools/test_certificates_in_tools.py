"""HTTPS: the address is that which was checked, and the certificate that of the host."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from local_http import LocalHttp, response

from parley.tools.settings import HttpToolSettings, ToolSettings
from parley.tools.toolbox import Toolbox


def certificate(folder, name):
    """A file with a key and a certificate for ``name``, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + made.public_bytes(Encoding.PEM))
    return file


@pytest.mark.parametrize("name", ["localhost", "elsewhere.example"])
async def test_the_certificate_must_be_the_hosts(tmp_path, monkeypatch, name):
    file = certificate(tmp_path, name)
    trusted = ssl.create_default_context(cafile=str(file))
    monkeypatch.setattr("parley.tools.addresses._certificates", lambda: trusted)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(file)
    asked_for = []
    own.sni_callback = lambda _, host, __: asked_for.append(host)
    http = LocalHttp(answers=[response('"hello"')])
    server = await asyncio.start_server(http.serve, "127.0.0.1", 0, ssl=own)
    port = server.sockets[0].getsockname()[1]
    entry = HttpToolSettings(name="t", url=f"https://localhost:{port}/")
    box = Toolbox(ToolSettings(private_hosts=["localhost"], http=[entry]), {})
    outcome = await box.call("t", {})
    await box.close()
    server.close()
    await server.wait_closed()
    assert asked_for == ["localhost"]
    if name == "localhost":
        assert outcome.output == "hello"
        assert http.received[0].headers["host"] == f"localhost:{port}"
    else:
        assert outcome.output == {"error": "the tool cannot be reached (ConnectError)"}
        assert http.received == []

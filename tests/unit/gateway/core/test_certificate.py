"""The certificate that the gateway shows, with real TLS connections."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
from certificates import Authority
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from parley_gateway.certificate import ServedCertificate
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.serving import running
from parley_gateway.settings import load_settings
from parley_gateway.settings_sections import ListenSettings

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Files:
    """A certificate and its key, which an authority renews."""

    def __init__(self, folder):
        self.authority = Authority()
        self.certificate, self.key = folder / "chain.pem", folder / "key.pem"
        self.renew("first")

    def renew(self, host, key=None):
        certificate, private = self.authority.issue(host, key=key)
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(private)

    @property
    def listen(self):
        return {"certificate": str(self.certificate), "key": str(self.key)}


class Connection:
    """A connection that stays open."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        common_name = x509.oid.NameOID.COMMON_NAME
        subject = x509.load_der_x509_certificate(shown).subject
        self.host = subject.get_attributes_for_oid(common_name)[0].value

    async def ask(self):
        """Whether a request is answered."""
        self._writer.write(REQUEST)
        line = await self._reader.readline()
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(one[15:]) for one in answer.lower().split(b"\r\n") if one.startswith(b"content-length")
        )
        await self._reader.readexactly(length)
        return b" 200 " in line

    def close(self):
        self._writer.close()


async def dial(url, name=""):
    port = int(url.rpartition(":")[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Connection(
        *await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "127.0.0.1")
    )


async def shown(url, name=""):
    connection = await dial(url, name)
    connection.close()
    return connection.host


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr("parley_gateway.security.watched._LOOK_EVERY_S", 0.02)
    return Files(tmp_path)


def settings(files):
    return load_settings(
        flags={
            "listen": {"port": 0, "health_port": 0, **files.listen},
            "servers": {"addresses": ["127.0.0.1:9"], "check_timeout_s": 0.2},
        }
    )


@pytest.fixture
async def gateway(files):
    async with running(settings(files)) as one:
        yield one


@asynccontextmanager
async def serving(served):
    """Connections that are closed once the handshake is done."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=served.context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until_shown(url, host):
    for _ in range(500):
        if await shown(url) == host:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{host} was never shown")


async def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on(gateway, files):
    before = await dial(gateway.url)
    assert before.host == "first"
    files.renew("second")
    await until_shown(gateway.url, "second")
    await until_shown(gateway.health_url, "second")
    assert await shown(gateway.url, "named.example") == "second"
    assert await before.ask()
    before.close()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (rsa.generate_private_key(65_537, 2048), ec.generate_private_key(ec.SECP256R1())),
        (ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65_537, 2048)),
    ],
)
async def test_a_key_of_another_kind_replaces_the_old_one(gateway, files, first, second):
    for number, key in enumerate((first, second)):
        files.renew(f"renewed-{number}", key)
        await until_shown(gateway.url, f"renewed-{number}")


async def test_a_pair_that_is_renewed_by_half_does_not_replace_the_old_one(files, caplog):
    served = ServedCertificate(ListenSettings(**files.listen))
    async with serving(served) as url:
        certificate, private = files.authority.issue("second")
        for half in (certificate[:100], certificate):
            files.certificate.write_bytes(half)
            served.reload()
            assert await shown(url) == "first"
        files.certificate.unlink()
        served.reload()
        assert await shown(url) == "first"
        assert "keeping" in caplog.text
        files.certificate.write_bytes(certificate)
        files.key.write_bytes(private)
        served.reload()
        assert await shown(url) == "second"


async def test_metrics_have_the_expiry_of_the_certificate_that_is_shown(files):
    async with running(settings(files)) as gateway:
        for name, age in (("first", 0.5), ("second", 0)):
            pem, key = files.authority.issue(name, age=age)
            files.certificate.write_bytes(pem)
            files.key.write_bytes(key)
            gateway.reload()
            (expires,) = [
                sample.value
                for family in gateway.gateway.metrics.registry.collect()
                for sample in family.samples
                if sample.name == "parley_gateway_certificate_expires_seconds"
            ]
            assert expires == x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


async def test_a_file_of_both_needs_no_other(files, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    served = ServedCertificate(ListenSettings(certificate=str(both)))
    async with serving(served) as url:
        assert await shown(url) == "first"
        both.write_bytes(b"".join(files.authority.issue("second")))
        served.reload()
        assert await shown(url) == "second"


def test_an_encrypted_key_is_refused_without_a_question(files):
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, _ = files.authority.issue("first", key=key)
    files.certificate.write_bytes(certificate)
    secret = BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    with pytest.raises(GatewaySettingsError, match="its key is encrypted"):
        ServedCertificate(ListenSettings(**files.listen))


async def test_a_reload_reads_the_files_at_once(files, monkeypatch):
    monkeypatch.setattr("parley_gateway.security.watched._LOOK_EVERY_S", 3_600.0)
    async with running(settings(files)) as gateway:
        files.renew("second")
        assert await shown(gateway.url) == "first"
        gateway.reload()
        assert await shown(gateway.url) == "second"

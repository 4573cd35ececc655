"""TLS between gateway and servers, with real gRPC and certificates that are made here."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import httpx2
import pytest
from certificates import Authority
from listening_gateway import DEADLINE_S, until
from test_real_channels import Noting
from tritonclient.grpc import service_pb2_grpc

from parley import protocol
from parley.canaries.asking import profile_models
from parley.canaries.connection import TlsAddress
from parley.errors import ModelUnavailableError
from parley_client.call import Call
from parley_client.transport import TritonTransport
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.servers import Servers, ServerSettings
from parley_gateway.servers import pool as pool_module
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.load import MetricsReader, ServerReport
from parley_gateway.servers.settings import TlsSettings
from parley_gateway.servers.tls import ServerTls
from parley_gateway.settings import load_settings

QUICK = {"check_s": 0.02, "retry_s": 0.02, "retry_max_s": 0.02, "metrics_url": ""}


@asynccontextmanager
async def tls_server(authority, *, host="triton.example", clients=None):
    """A server that echoes; with ``clients`` it demands a certificate of theirs. Yields address and peers."""
    certificate, key = authority.issue(host)
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)],
        root_certificates=clients.certificate if clients else None,
        require_client_auth=clients is not None,
    )
    peers = set()
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Noting(peers), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", peers
    finally:
        await server.stop(0)


class Files:
    """The files of the gateway's settings."""

    def __init__(self, folder, authority):
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        self.ca.write_bytes(authority.certificate)

    def show(self, authority):
        certificate, key = authority.issue("gateway")
        self.cert.write_bytes(certificate)
        self.key.write_bytes(key)

    def settings(self, **more):
        own = {"cert_file": str(self.cert), "key_file": str(self.key)} if self.cert.exists() else {}
        return TlsSettings(ca_file=str(self.ca), **own | more)


@pytest.fixture
def authority():
    return Authority()


@pytest.fixture
def files(tmp_path, authority):
    return Files(tmp_path, authority)


def pool(address, tls, **settings):
    return Servers(
        ServerSettings(addresses=(address,), tls=tls, **QUICK | settings), ask_models=lambda *_: []
    )


async def call_on(server):
    call = Call(
        await TritonTransport(server.address, channel=server.channel).open("id", DEADLINE_S),
        "id",
        protocol.Start(),
    )
    await call.open()
    return call


async def test_a_server_is_reached_by_the_name_in_its_certificate(authority, files):
    async with tls_server(authority) as (address, _):
        async with pool(address, files.settings(server_name="triton.example")) as servers:
            await until(lambda: servers.is_ready)
            call = await call_on(servers.all[0])
            await call.aclose()
        for wrong in (None, files.settings(), files.settings(server_name="other.example")):
            async with pool(address, wrong) as servers:
                assert not servers.is_ready


async def test_a_server_that_another_authority_has_signed_is_not_believed(files):
    tls = files.settings(server_name="triton.example")
    async with tls_server(Authority("another")) as (address, _), pool(address, tls) as servers:
        assert not servers.is_ready


async def test_the_name_that_a_server_was_found_by_is_in_its_certificate(authority, files):
    async with tls_server(authority) as (address, _):

        async def resolve(name, port):
            return [address]

        servers = Servers(
            ServerSettings(addresses=("dns://triton.example:8001",), tls=files.settings(), **QUICK),
            ask_models=lambda *_: [],
            resolve=resolve,
        )
        async with servers:
            await until(lambda: servers.is_ready)


async def test_a_server_may_demand_a_certificate(authority, files):
    clients = Authority("clients")
    async with tls_server(authority, clients=clients) as (address, _):
        async with pool(address, files.settings(server_name="triton.example")) as servers:
            assert not servers.is_ready
        files.show(clients)
        tls = ServerTls(files.settings(server_name="triton.example"))
        async with pool(address, files.settings(server_name="triton.example")) as servers:
            await until(lambda: servers.is_ready)
        # The canaries are blocking, on connections of their own.
        assert await asyncio.to_thread(profile_models, tls.address_of(Endpoint(address)), DEADLINE_S) == {}
        plain = TlsAddress(address, grpc.ssl_channel_credentials(authority.certificate), "triton.example")
        with pytest.raises(ModelUnavailableError):
            await asyncio.to_thread(profile_models, plain, 0.5)


async def test_new_calls_use_certificates_that_were_renewed_and_live_ones_stay(authority, files, monkeypatch):
    monkeypatch.setattr(pool_module, "_CERTIFICATES_S", 0.01)
    clients = Authority("clients")
    files.show(clients)
    tls = files.settings(server_name="triton.example")
    async with tls_server(authority, clients=clients) as (address, peers), pool(address, tls) as servers:
        (server,) = servers.all
        await until(lambda: servers.is_ready)
        first = server.channel
        with servers.lease():
            call = await call_on(server)
            certificate, key = clients.issue("gateway")
            files.cert.write_bytes(certificate)
            await asyncio.sleep(0.05)
            assert server.channel is first  # the key is not that of the certificate
            files.key.write_bytes(key)
            await until(lambda: server.channel is not first)
            await call.send_audio(bytes(320))
            with servers.lease():
                other = await call_on(server)
                await other.aclose()
            assert first.get_state() is grpc.ChannelConnectivity.READY
            assert len(peers) == 2
            await call.aclose()
        await until(lambda: first.get_state() is grpc.ChannelConnectivity.SHUTDOWN)
        assert servers.is_ready


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_files_that_cannot_be_used_are_an_error_at_the_start(files, authority, name):
    files.show(authority)
    settings = files.settings()
    getattr(files, name).write_text("nonsense")
    with pytest.raises(GatewaySettingsError, match=name):
        ServerTls(settings)
    getattr(files, name).unlink()
    with pytest.raises(GatewaySettingsError, match="cannot be read"):
        ServerTls(settings)


def test_a_certificate_needs_its_key():
    with pytest.raises(GatewaySettingsError, match="given together"):
        load_settings(environment={"PARLEY_GATEWAY_SERVERS_TLS": '{"cert_file": "cert.pem"}'})


async def test_metrics_are_read_by_https(authority, files, tmp_path):
    certificate, key = authority.issue("triton.example")
    (tmp_path / "server.pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'voice_agent_sessions_limit{model_instance="a"} 16\n'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    endpoint = Endpoint("127.0.0.1:1", f"https://127.0.0.1:{port}/metrics")
    async with server:
        for name, is_known in (("triton.example", True), ("other.example", False)):
            reader = MetricsReader(DEADLINE_S, 4, ServerTls(files.settings(server_name=name)))
            if is_known:
                assert await reader.read(endpoint) == ServerReport(0, 16)
                await reader.renew()
                assert await reader.read(endpoint) == ServerReport(0, 16)
            else:
                with pytest.raises(httpx2.ConnectError):
                    await reader.read(endpoint)
            await reader.aclose()

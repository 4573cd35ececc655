"""Calls by TLS, with real gRPC and certificates that are made here."""

import argparse
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from certificates import Authority
from fake_call_server import Triton
from tritonclient.grpc import service_pb2_grpc

from parley.errors import InvalidInputError
from parley_client import NO_RETRY, TlsOptions, connect
from parley_client.cli.arguments import add_server, add_servers, read_tls_options
from parley_client.errors import NoGrpcError, TlsError
from parley_stages.server import LazyServer

NAME = "triton.example"


@asynccontextmanager
async def echoing(credentials=None):
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class Party:
    """A server or a client, with files of a certificate that an authority has signed."""

    def __init__(self, folder, authority, name):
        self.ca, self.cert, self.key = (folder / f"{name}.{end}" for end in ("ca", "crt", "key"))
        certificate, key = authority.issue(name)
        self.ca.write_bytes(authority.certificate)
        self.cert.write_bytes(certificate)
        self.key.write_bytes(key)

    def credentials(self, clients=None):
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], clients, require_client_auth=clients is not None)


@pytest.fixture
def triton(tmp_path):
    return Party(tmp_path, Authority(), NAME)


@pytest.fixture
def caller(tmp_path):
    return Party(tmp_path, Authority("clients"), "caller")


async def hold(address, tls):
    async with connect(address, tls=tls, retry=NO_RETRY) as call:
        await call.send_audio(bytes(320))


async def test_a_server_is_believed_by_its_authority_and_its_name(triton, caller):
    async with echoing(triton.credentials()) as address:
        await hold(address, TlsOptions(ca_file=triton.ca, server_name=NAME))
        for tls, words in (
            (TlsOptions(ca_file=triton.ca), f"^{address} has a certificate for another name$"),
            (TlsOptions(ca_file=triton.ca, server_name="other.example"), "another name"),
            (TlsOptions(ca_file=caller.ca, server_name=NAME), "is not trusted: unable to get local issuer"),
            (TlsOptions(server_name=NAME), "is not trusted"),
        ):
            with pytest.raises(TlsError, match=words):
                await hold(address, tls)
        with pytest.raises(NoGrpcError, match="does it demand TLS"):
            await hold(address, None)


async def test_a_server_may_demand_a_certificate(triton, caller):
    authority = caller.ca.read_bytes()
    async with echoing(triton.credentials(authority)) as address:
        known = {"ca_file": triton.ca, "server_name": NAME}
        tls = TlsOptions(**known, cert_file=caller.cert, key_file=caller.key)
        await hold(address, tls)
        async with LazyServer(address, tls=tls) as server:  # the stages, and the plugins
            await server.get()
        for own in ({}, {"cert_file": triton.cert, "key_file": triton.key}):
            with pytest.raises(NoGrpcError, match="or a certificate of its clients"):
                await hold(address, TlsOptions(**known, **own))


async def test_a_server_without_tls_is_no_reason_to_do_without(triton):
    async with echoing() as address:
        with pytest.raises(TlsError, match="does not speak TLS"):
            await hold(address, TlsOptions(ca_file=triton.ca, server_name=NAME))


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
async def test_files_that_cannot_be_used_are_named(triton, name):
    tls = TlsOptions(ca_file=triton.ca, cert_file=triton.cert, key_file=triton.key)
    file = getattr(triton, name)
    file.write_text("nonsense")
    with pytest.raises(InvalidInputError, match=f"TLS: .*{file.name}.* cannot be used"):
        await hold("127.0.0.1:9", tls)
    file.unlink()
    with pytest.raises(InvalidInputError, match=f"TLS: .*{file.name}.* cannot be used"):
        await hold("127.0.0.1:9", tls)


def read(*words, add=add_server):
    parser = argparse.ArgumentParser()
    add(parser)
    return read_tls_options(parser.parse_args(words))


@pytest.mark.parametrize("add", [add_server, add_servers])
def test_the_command_line_counts_over_the_environment(monkeypatch, add):
    for variable in ("CA_FILE", "SERVER_NAME", "CERT_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"PARLEY_GRPC_{variable}", raising=False)
    assert read(add=add) is None
    assert read("--tls", "--server-name", NAME, add=add) == TlsOptions(server_name=NAME)
    monkeypatch.setenv("PARLEY_GRPC_CA_FILE", "a")
    monkeypatch.setenv("PARLEY_GRPC_SERVER_NAME", "b")
    assert read(add=add) == TlsOptions(ca_file=Path("a"), server_name="b")
    assert read("--server-name", NAME, add=add) == TlsOptions(ca_file=Path("a"), server_name=NAME)
    given = read("--ca", "x", "--cert", "y", "--key", "z", add=add)
    assert given == TlsOptions(ca_file=Path("x"), cert_file=Path("y"), key_file=Path("z"))
    with pytest.raises(InvalidInputError, match="given together"):
        read("--cert", "y", add=add)

"""The server's certificate: whether it can call itself with it, and what Triton and its models are given."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from certificates import Authority
from cryptography.hazmat.primitives.asymmetric import ec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.canaries.connection import address_of
from parley.launcher import tls as tls_module
from parley.launcher.__main__ import invitation, main, parser, read_options
from parley.launcher.command import build_command, build_environment
from parley.launcher.errors import LauncherSettingsError
from parley.launcher.liveness import read_counts
from parley.launcher.options import Endpoints, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.launcher.tls import ServerTls

BOTH = ("SERVER_AUTH", "CLIENT_AUTH")


@pytest.fixture
def make(tmp_path):
    """Writes files; returns how a server uses them."""

    def write(certificate, key, clients=None):
        files = {"cert_file": certificate, "key_file": key, "client_ca_file": clients}
        for name, content in files.items():
            if content is not None:
                (tmp_path / name).write_bytes(content)
        return ServerTls(**{name: tmp_path / name for name, content in files.items() if content})

    return write


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (("triton.example",), "triton.example"),
        (("127.0.0.1",), "127.0.0.1"),
        (("10.0.0.7", "*.voice.svc"), "parley.voice.svc"),
    ],
)
@pytest.mark.parametrize("usages", [(), BOTH])
@pytest.mark.parametrize("is_mutual", [False, True])
def test_a_server_calls_itself_with_its_own_certificate(make, hosts, name, usages, is_mutual):
    authority = Authority()
    tls = make(*authority.issue(*hosts, usages=usages), authority.certificate if is_mutual else None)
    own = tls.own_options()
    assert own.server_name == name
    files = tls.cert_file.read_bytes(), tls.key_file.read_bytes()
    with serving(*files, authority.certificate if is_mutual else None) as address:
        assert read_counts(address_of(address, own)) == {"echo": (0, 0, 7)}
        if is_mutual:
            with pytest.raises(ConnectionError):
                read_counts(address_of(address, make(*authority.issue(*hosts)).own_options()))


@pytest.mark.parametrize("is_chain", [False, True])
def test_in_a_chain_its_authorities_are_trusted_for_the_same_name(make, is_chain):
    authority = Authority()
    certificate, key = authority.issue("triton.example")
    own = make(certificate + (authority.certificate if is_chain else b""), key).own_options()
    for name, is_trusted in (("triton.example", is_chain), ("other.example", False)):
        with serving(*authority.issue(name)) as address:
            if is_trusted:
                assert read_counts(address_of(address, own)) == {"echo": (0, 0, 7)}
            else:
                with pytest.raises(ConnectionError):
                    read_counts(address_of(address, own))


@contextmanager
def serving(certificate, key, clients=None):
    """The address of a server with this certificate; ``clients``: what those of its clients are signed by."""
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], clients, require_client_auth=clients is not None
    )
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Statistics(), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0)


class Statistics(service_pb2_grpc.GRPCInferenceServiceServicer):
    def ModelStatistics(self, request, context):  # noqa: N802 - gRPC's name
        found = service_pb2.ModelStatistics(name="echo")
        found.inference_stats.success.count = 7
        return service_pb2.ModelStatisticsResponse(model_stats=[found])


def test_a_server_that_could_not_call_itself_does_not_start(make):
    authority, clients = Authority(), Authority("clients")
    for usages, ca, words in (
        (
            BOTH,
            clients.certificate,
            "issuer certificate. The server's models call each other",
        ),
        (("SERVER_AUTH",), authority.certificate, "unsuitable certificate purpose|unsupported .*purpose"),
        (("CLIENT_AUTH",), None, "cannot be used: uns.* purpose"),
        ((), b"nonsense", "client_ca_file cannot be used"),
    ):
        with pytest.raises(LauncherSettingsError, match=words):
            make(*authority.issue("triton.example", usages=usages), ca).own_options()
    with pytest.raises(LauncherSettingsError, match="cert_file cannot be used: certificate has expired"):
        make(*authority.issue("triton.example", age=2)).own_options()
    with pytest.raises(LauncherSettingsError, match="names no host"):
        make(*authority.issue()).own_options()
    certificate, _ = authority.issue("triton.example")
    _, other = authority.issue("triton.example", key=ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(LauncherSettingsError, match=r"cert_file and .*key_file cannot be used: .*MISMATCH"):
        make(certificate, other).own_options()
    with pytest.raises(LauncherSettingsError, match=r"cert_file and .*key_file cannot be used"):
        make(b"nonsense", other).own_options()


def test_triton_and_its_models_are_given_the_files(make, installation):
    authority = Authority()
    tls = make(*authority.issue("triton.example"), authority.certificate)
    options = ServerOptions(grpc_port=1, http_port=2, metrics_port=3, tls=tls)
    flags = build_command(installation, options, Path("/backends"), "parley-")
    assert f"--grpc-server-cert={tls.cert_file}" in flags
    assert f"--grpc-root-cert={tls.client_ca_file}" in flags
    assert {"--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true"} <= set(flags)
    inherited = {"PARLEY_GRPC_CA_FILE": "of a client", "PARLEY_GRPC_SERVER_NAME": "other"}
    environment = build_environment(installation, options, inherited)
    assert environment["PARLEY_GRPC_CA_FILE"] == environment["PARLEY_GRPC_CERT_FILE"] == str(tls.cert_file)
    assert environment["PARLEY_GRPC_SERVER_NAME"] == "triton.example"
    plain = build_environment(installation, ServerOptions(), inherited)
    assert not [name for name in plain if name.startswith("PARLEY_GRPC_") and name != "PARLEY_GRPC_URL"]


@pytest.fixture
def while_waiting(monkeypatch):
    """Does something in the place of the wait for the end of a renewal."""

    def do(something):
        monkeypatch.setattr(tls_module, "time", SimpleNamespace(sleep=lambda _: something()))

    return do


def test_models_keep_the_files_that_triton_has_read(make, tmp_path, while_waiting):
    authority = Authority()
    tls = make(*authority.issue("triton.example"), authority.certificate)
    folder = tmp_path / "copies"
    folder.mkdir()
    kept, own = tls.copy_to(folder)
    tls.cert_file.unlink()
    assert kept.own_options() == own
    assert own.server_name == "triton.example"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    while_waiting(lambda: None)
    with pytest.raises(LauncherSettingsError, match="cert_file cannot be read: No such file"):
        tls.copy_to(folder)


def test_a_renewal_between_the_copies_of_two_files(make, tmp_path, while_waiting):
    authority = Authority()
    certificate, key = authority.issue("new.example")
    _, old_key = authority.issue("triton.example")
    tls = make(certificate, old_key)
    while_waiting(lambda: tls.key_file.write_bytes(key))
    folder = tmp_path / "copies"
    folder.mkdir()
    kept, own = tls.copy_to(folder)
    assert own.server_name == "new.example"
    assert kept.key_file.read_bytes() == key


def test_files_that_do_not_fit_start_nothing_and_leave_no_copy(
    make, installation, repository, tmp_path, monkeypatch
):
    temporary, runs = tmp_path / "t", tmp_path / "runs"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(tls_module, "_RENEWAL_S", 0.0)
    authority = Authority()
    tls = make(*authority.issue("triton.example"))
    options = ServerOptions(
        model_repository=repository,
        state_dir=tmp_path / "state",
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        tls=tls,
        environment={"FAKE_SCENE": "serves", "FAKE_RUNS": str(runs)},
    )
    server = EmbeddedServer(options, installation=installation, limits=None)
    server.check_settings()
    tls.key_file.write_bytes(authority.issue("triton.example")[1])
    with pytest.raises(LauncherSettingsError, match="MISMATCH"):
        server.start()
    assert not runs.exists()
    assert list(temporary.iterdir()) == []


def test_the_launcher_checks_the_files_before_anything_is_fetched(tmp_path):
    nothing = ServerTls(cert_file=tmp_path / "no.pem", key_file=tmp_path / "no.key")
    with pytest.raises(LauncherSettingsError, match=r"no\.pem"):
        EmbeddedServer(ServerOptions(tls=nothing)).check_settings()


def test_the_command_line(capsys):
    given = ["--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c"]
    tls = read_options(parser().parse_args(given)).tls
    assert tls == ServerTls(cert_file=Path("a"), key_file=Path("b"), client_ca_file=Path("c"))
    assert "docs/client.md#tls" in invitation(Endpoints(grpc="a:1", http="", metrics=""), tls)
    for wrong in (given[:2], given[2:4], given[4:]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert "given together" in capsys.readouterr().err

"""``parley gateway health``, as an image's health check runs it."""

import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from certificates import Authority

from parley_client.cli.program import main


@contextmanager
def answering(status, tls=None):
    """A server whose /readyz has this status; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/readyz" else 500)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": "no_server_ready"}}')

        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """The address that images listen on."""
    monkeypatch.setenv("PARLEY_GATEWAY_LISTEN_HOST", "0.0.0.0")  # noqa: S104 - is asked at 127.0.0.1


@pytest.mark.parametrize("variable", ["PORT", "HEALTH_PORT"])
@pytest.mark.parametrize(("status", "exit_status"), [(200, 0), (503, 1)])
def test_health_command_uses_the_port_of_probes(monkeypatch, capsys, variable, status, exit_status):
    with answering(status) as port:
        monkeypatch.setenv(f"PARLEY_GATEWAY_LISTEN_{variable}", str(port))
        assert main(["gateway", "health"]) == exit_status
    assert ("no_server_ready" in capsys.readouterr().err) == bool(exit_status)
    assert main(["gateway", "health"]) == 1
    assert "no gateway answers" in capsys.readouterr().err


def test_a_gateway_with_a_certificate_is_asked_by_tls(monkeypatch, tmp_path):
    certificate, key = Authority().issue("voice.example.com")
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with answering(200, context) as port:
        monkeypatch.setenv("PARLEY_GATEWAY_LISTEN_HEALTH_PORT", str(port))
        monkeypatch.setenv("PARLEY_GATEWAY_LISTEN_CERTIFICATE", str(tmp_path / "tls.crt"))
        assert main(["gateway", "health"]) == 0


def test_a_port_that_is_not_known_cannot_be_asked(monkeypatch, capsys):
    monkeypatch.setenv("PARLEY_GATEWAY_LISTEN_HEALTH_PORT", "0")
    assert main(["gateway", "health"]) == 2
    assert "listen.health_port is 0" in capsys.readouterr().err

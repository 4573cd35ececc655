"""nginx before gateways: the configuration of the compose file, and the routes of docs/gateway.md."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from parley.launcher.options import ROOT

COMPOSE = ROOT / "deploy" / "compose" / "nginx" / "nginx.conf"
ROUTES = re.search(r"```nginx\n(.*?)```", (ROOT / "docs" / "gateway.md").read_text(), re.DOTALL)[1]


class Named(BaseHTTPRequestHandler):
    """Answers with the port of its server, and with the headers of an upgrade that have come."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        found = [name for name in ("Upgrade", "Connection", "HTTP2-Settings") if name in self.headers]
        said = [str(self.server.server_port), *(f"{name}={self.headers[name]}" for name in found)]
        self.wfile.write(" ".join(said).encode())

    def log_message(self, *_):
        pass


@contextmanager
def gateway():
    """A server in place of a gateway; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Named) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def configure(folder, listen, gateways, routes):
    """The compose file's configuration for plain HTTP, as docs/gateway.md changes it."""
    pool = "\n".join(f"server {address} max_fails=0;" for address in gateways)
    changes = {
        r"upstream gateway \{": f"{routes}\nupstream gateways {{",
        r"server gateway:8080 max_fails=0;": pool,
        r"proxy_pass http://gateway;": "proxy_pass http://$gateway;",
        r"listen 8443 ssl;\s+listen \[::\]:8443 ssl;": f"listen {listen};",
        r"ssl_certificate .*?ssl_session_tickets off;": "",
    }
    text = COMPOSE.read_text().replace("/tmp/", f"{folder}/").replace("/dev/stdout", f"{folder}/log")  # noqa: S108
    for pattern, replacement in changes.items():
        text, count = re.subn(pattern, lambda _, new=replacement: new, text, flags=re.DOTALL)
        assert count == 1, pattern
    return text


@contextmanager
def nginx(folder, *gateways):
    """A client of an nginx before two gateways."""
    if shutil.which("nginx") is None:
        pytest.skip("`nginx` is missing. Run, as root on Debian: scripts/setup --cluster")
    listen = folder / "nginx.sock"
    routes = ROUTES.replace("10.0.0.7:8080", gateways[0]).replace("10.0.0.8:8080", gateways[1])
    config = folder / "nginx.conf"
    config.write_text(configure(folder, f"unix:{listen}", gateways, routes))
    # As root it would run its workers as another user, who may not write into the folder.
    command = ["nginx", "-c", config, "-e", "stderr", "-g", "daemon off; master_process off;"]
    with (
        subprocess.Popen(command) as process,
        httpx.Client(base_url="http://nginx", transport=httpx.HTTPTransport(uds=str(listen))) as http,
    ):
        try:
            end = time.monotonic() + 30
            while not listens(listen):
                assert process.poll() is None, "nginx has ended"
                assert time.monotonic() < end, "nginx does not listen"
                time.sleep(0.02)
            yield http
        finally:
            process.terminate()


def listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.mark.parametrize(
    ("protocol", "passed_on"),
    [
        ("websocket", " Upgrade=websocket Connection=upgrade"),
        ("WebSocket", " Upgrade=websocket Connection=upgrade"),
        ("h2c", ""),
        ("h2c, websocket", ""),
        ("websocket, h2c", ""),
        ("TLS/1.0", ""),
        ("", ""),
    ],
)
def test_nginx_lets_clients_upgrade_to_websockets_only(tmp_path, protocol, passed_on):
    headers = {"Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    with gateway() as one, nginx(tmp_path, one, one) as http:
        answer = http.get("/v1/agent", headers={**headers, "Upgrade": protocol})
    text = answer.text.removesuffix(f" HTTP2-Settings={headers['HTTP2-Settings']}")
    assert text == one.partition(":")[2] + passed_on


def test_nginx_sends_sessions_to_the_gateways_that_made_them(tmp_path):
    with ExitStack() as stack:
        both = [stack.enter_context(gateway()) for _ in range(2)]
        http = stack.enter_context(nginx(tmp_path, *both))

        def answers(path, **headers):
            return {http.get(path, headers=headers).text for _ in range(6)}

        ports = [address.partition(":")[2] for address in both]
        for name, port in zip(("a", "b"), ports, strict=True):
            assert answers(f"/v1/sessions/{name}_one/status") == {port}
            assert answers(f"/v1/realtime/calls/rtc_{name}_one") == {port}
            assert answers("/v1/realtime", Authorization=f"Bearer ek_{name}_secret") == {port}
        assert answers("/v1/agent") == set(ports)

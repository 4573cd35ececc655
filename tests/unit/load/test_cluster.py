"""The nodes, links and programs of `make cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from cluster.balancer import Balancer, render
from harness.network import Network, NetworkError, NodeThread
from harness.servers import Program, Redis, ServersFile

from parley.errors import DeadlineExceededError, ParleyError
from parley.launcher.options import ROOT

COMPOSE = ROOT / "deploy/compose/nginx/nginx.conf"
GATEWAYS = {"gateway-1": "10.78.1.2:8080", "gateway-2": "10.78.1.3:8080"}


def test_sessions_are_routed_by_the_gateway_in_their_ids(tmp_path):
    text = render(COMPOSE.read_text(), "10.78.1.9:8080", GATEWAYS, tmp_path)
    assert "~^/v1/(sessions/|realtime/calls/rtc_)gateway-2_  10.78.1.3:8080;" in text
    assert text.count("server 10.78.1.2:8080 max_fails=0;") == 1
    assert "ssl" not in text
    assert f"proxy_temp_path {tmp_path}/proxy;" in text


def test_a_gateway_that_leaves_keeps_its_sessions(tmp_path):
    text = render(COMPOSE.read_text(), "10.78.1.9:8080", GATEWAYS, tmp_path, {"gateway-1"})
    assert "~^/v1/(sessions/|realtime/calls/rtc_)gateway-1_  10.78.1.2:8080;" in text
    assert "server 10.78.1.2:8080" not in text
    assert "server 10.78.1.3:8080 max_fails=0;" in text


def test_another_configuration_of_the_compose_file_is_noticed(tmp_path):
    with pytest.raises(ValueError, match="0 times"):
        render("http {}", "10.78.1.9:8080", GATEWAYS, tmp_path)


def test_the_file_of_servers_is_replaced_as_a_whole(tmp_path):
    file = ServersFile(tmp_path / "servers")
    file.write(["10.0.0.1:8001", "10.0.0.2:8001"])
    assert file.path.read_text() == "10.0.0.1:8001\n10.0.0.2:8001\n"
    file.write({"10.0.0.1:9": "http://10.0.0.2:8002/metrics"})
    assert file.path.read_text() == '[{"address": "10.0.0.1:9", "metrics": "http://10.0.0.2:8002/metrics"}]'
    assert [path.name for path in tmp_path.iterdir()] == ["servers"]


@pytest.fixture
def network():
    network = Network()
    try:
        network.__enter__()
    except NetworkError as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        stack.push(network)
        yield network


ECHO = """
import socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while data := self.request.recv(100):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(("", 9000), Echo).serve_forever()
"""


@pytest.fixture
def echo(network, tmp_path):
    """A node with a server that sends back what it gets."""
    node = network.add("echo")
    with (tmp_path / "log").open("wb") as log:
        node.start([sys.executable, "-c", ECHO], log=log)
        for _ in range(100):
            with contextlib.suppress(OSError), connect(node):
                yield node
                return
            time.sleep(0.05)
    pytest.fail("the node does not answer")


def connect(node):
    return socket.create_connection((node.address, 9000), 2.0)


def exchanges(connection, timeout_s):
    """Whether something that is sent comes back."""
    connection.settimeout(timeout_s)
    try:
        connection.sendall(b"?")
        return bool(connection.recv(100))
    except TimeoutError:
        return False


def needs_rules(node):
    try:
        node.lose(0)
    except NetworkError as error:
        pytest.skip(str(error))


def test_a_link_that_loses_everything_and_one_that_loses_much(echo):
    needs_rules(echo)
    with connect(echo) as connection:
        assert exchanges(connection, 5.0)
        assert echo.dropped() == 0
        echo.lose(100)
        assert not exchanges(connection, 0.5)
        lost = echo.dropped()
        assert lost > 0
        echo.lose(20)
        for _ in range(20):
            assert exchanges(connection, 30.0), "TCP sends again what is lost"
        assert echo.dropped() > lost
        echo.lose(0)
        total = echo.dropped()  # after the loss: until then acknowledgements are lost too
        assert exchanges(connection, 30.0)
        assert echo.dropped() == total


def test_nodes_that_are_separated_still_reach_the_others(network, echo, tmp_path):
    needs_rules(echo)
    other = network.add("other")
    ask = f"import socket; socket.create_connection(('{echo.address}', 9000), 1.0)"

    def reaches():
        with (tmp_path / "asked").open("wb") as log:
            return other.start([sys.executable, "-c", ask], log=log).wait(30) == 0

    assert reaches()
    echo.separate([other])
    assert not reaches()
    with connect(echo) as connection:
        assert exchanges(connection, 5.0)
    assert echo.dropped() > 0
    echo.separate([])
    assert reaches()


def test_connections_that_are_reset(echo):
    needs_rules(echo)
    with connect(echo) as connection:
        assert exchanges(connection, 5.0)
        echo.reset(on=True)
        with pytest.raises(ConnectionError):
            exchanges(connection, 5.0)
        echo.reset(on=False)
    with connect(echo) as connection:
        assert exchanges(connection, 5.0)


async def test_a_thread_in_a_node_has_the_sockets_of_the_node(network, echo):
    node = network.add("caller")
    seen = []

    async def ask():
        reader, writer = await asyncio.open_connection(echo.address, 9000)
        seen.append(writer.get_extra_info("sockname")[0])
        writer.write(b"?")
        assert await reader.readexactly(1) == b"?"
        writer.close()

    thread = NodeThread(node, ask)
    thread.start()
    await thread.join(30.0)
    assert seen == [node.address]
    with connect(echo) as connection:  # the other threads are where they were
        assert connection.getsockname()[0] == network.address


async def test_the_failure_of_a_thread_is_raised_where_it_is_awaited(network):
    async def fail():
        raise ParleyError("no")

    thread = NodeThread(network.add("caller"), fail)
    thread.start()
    with pytest.raises(ParleyError, match="no"):
        await thread.join(30.0)


async def test_a_thread_that_is_cancelled_ends(network):
    began, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def wait():
        loop.call_soon_threadsafe(began.set)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    thread = NodeThread(network.add("caller"), wait)
    thread.start()
    await began.wait()
    with pytest.raises(DeadlineExceededError):
        await thread.join(0.01)
    await asyncio.to_thread(thread.cancel)
    assert ended.is_set()


NAMED = """
import http.server, sys
class Named(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
        for name in ("Upgrade", "Connection", "HTTP2-Settings"):
            if name in self.headers:
                self.wfile.write(f" {name}={self.headers[name]}".encode())
http.server.ThreadingHTTPServer(("", 8080), Named).serve_forever()
"""


async def balanced(network, folder, *names):
    """A running nginx, and what it sends to gateways that say their names, by name."""
    node = network.add("nginx")
    try:
        balancer = Balancer(node, folder)
    except NetworkError as error:
        pytest.skip(str(error))
    gateways = {}
    for name in names:
        node = network.add(name)
        address = (node.address, 8080)
        await Program(node, name, folder).start(
            [sys.executable, "-c", NAMED, name], lambda address=address: listens(address), ready_s=30.0
        )
        gateways[name] = f"{node.address}:8080"
    await balancer.start(gateways)
    return balancer, gateways


@pytest.mark.parametrize(
    ("protocol", "passed_on"),
    [
        ("websocket", "g Upgrade=websocket Connection=upgrade"),
        ("WebSocket", "g Upgrade=websocket Connection=upgrade"),
        ("h2c", "g"),
        ("h2c, websocket", "g"),
        ("websocket, h2c", "g"),
        ("TLS/1.0", "g"),
        ("", "g"),
    ],
)
async def test_nginx_lets_clients_upgrade_to_websockets_only(network, tmp_path, protocol, passed_on):
    balancer, _ = await balanced(network, tmp_path, "g")
    headers = {"Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    async with httpx.AsyncClient(base_url=f"http://{balancer.address}", trust_env=False) as http:
        answer = await http.get("/v1/agent", headers={**headers, "Upgrade": protocol})
    assert answer.text.removesuffix(f" HTTP2-Settings={headers['HTTP2-Settings']}") == passed_on


async def test_nginx_sends_sessions_to_the_gateways_that_made_them(network, tmp_path):
    balancer, gateways = await balanced(network, tmp_path, "gateway-1", "gateway-2")
    async with httpx.AsyncClient(base_url=f"http://{balancer.address}", trust_env=False) as http:

        async def answers(path):
            return {(await http.get(path)).text for _ in range(6)}

        for name in gateways:
            assert await answers(f"/v1/sessions/{name}_one/status") == {name}
        assert await answers("/v1/agent") == set(gateways)
        balancer.reload(gateways, leaving={"gateway-1"})
        for _ in range(100):
            if await answers("/v1/agent") == {"gateway-2"}:
                break
            await asyncio.sleep(0.05)
        assert await answers("/v1/agent") == {"gateway-2"}
        assert await answers("/v1/sessions/gateway-1_one/stream") == {"gateway-1"}


def listens(address):
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


async def test_a_redis_that_is_killed_comes_back_empty(network, tmp_path):
    node = network.add("redis")
    try:
        redis = Redis(node, tmp_path)
    except NetworkError as error:
        pytest.skip(str(error))
    await redis.start()
    with socket.create_connection((redis.host.address, 6379)) as connection:
        connection.sendall(b"SET a b\r\n")
        assert connection.recv(16) == b"+OK\r\n"
    assert (redis.answers(), redis.keys()) == (True, 1)
    redis.kill()
    assert not redis.answers()
    await redis.start()
    assert redis.keys() == 0


def test_rules_end_with_the_network(tmp_path):
    network = Network()
    try:
        with network:
            node = network.add("one")
            needs_rules(node)
            node.lose(5)
            name = node.namespace.partition("-")[0]
            listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
            assert name in listed.stdout
    except NetworkError as error:
        pytest.skip(str(error))
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    assert name not in listed.stdout

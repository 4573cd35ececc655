"""The nodes of a network, their links, and the programs in them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.network import Network, NetworkError
from harness.servers import Redis, write_servers


def test_the_file_of_servers_is_replaced_as_a_whole(tmp_path):
    file = write_servers(tmp_path / "servers", ["10.0.0.1:8001", "10.0.0.2:8001"])
    assert file.read_text() == "10.0.0.1:8001\n10.0.0.2:8001\n"
    write_servers(file, {"10.0.0.1:9": "http://10.0.0.2:8002/metrics"})
    assert file.read_text() == '[{"address": "10.0.0.1:9", "metrics": "http://10.0.0.2:8002/metrics"}]'
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


def test_a_node_that_is_cut_off_is_there_again_when_it_is_mended(echo):
    with connect(echo) as connection:
        assert exchanges(connection, 5.0)
        echo.cut()
        assert not exchanges(connection, 0.5)
        echo.mend()
        assert exchanges(connection, 30.0), "the connection goes on"
    echo.kill()
    with pytest.raises(ConnectionRefusedError):
        connect(echo)


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
        connection.sendall(b"EXISTS a\r\n")
        assert connection.recv(16) == b":1\r\n"
    assert redis.answers()
    redis.kill()
    assert not redis.answers()
    await redis.start()
    with socket.create_connection((redis.host.address, 6379)) as connection:
        connection.sendall(b"EXISTS a\r\n")
        assert connection.recv(16) == b":0\r\n"


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
    assert not list(Path("/sys/class/net").glob(f"*{os.getpid()}*"))

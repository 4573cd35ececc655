"""How many connections there may be, and what is left for the others."""

import asyncio
import contextlib
import os
import resource
import socket

import httpx
import pytest
from listening_gateway import DEADLINE_S, receive, until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley_gateway import connections, serving
from parley_gateway.connections import ConnectionLimiter, reserved_descriptors
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.metrics import Metrics
from parley_gateway.security.addresses import ClientAddresses
from parley_gateway.security.keys import new_key

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PAGE = HEALTH.replace(b"/healthz", b"/asyncapi.json")


@pytest.fixture
async def opened():
    """Opens connections to a gateway; closes them at the end."""
    with contextlib.ExitStack() as stack:

        async def open_some(one, count, address="127.0.0.1", to=None):
            where = reached(to or one.url)
            made = []
            for _ in range(count):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.bind((address, 0))
                await asyncio.get_running_loop().sock_connect(client, where)
                made.append(client)
            return made

        yield open_some


async def ask(client, request=HEALTH):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, request)
    raw = b""
    async with asyncio.timeout(DEADLINE_S):
        while piece := await loop.sock_recv(client, 65_536):
            raw += piece
    return int(raw.split(b" ", 2)[1]), raw


async def is_closed(client):
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.05):
            return await asyncio.get_running_loop().sock_recv(client, 1) == b""
        return True
    return False


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-Slow: "])
async def test_a_flood_of_idle_connections_pushes_out_its_own(gateway, opened, begun):
    one = await gateway(limits={"connections": 20, "connections_per_address": 20})
    idle = await opened(one, 60)
    for client in idle:
        with contextlib.suppress(ConnectionError):
            client.send(begun)
    (client,) = await opened(one, 1)
    assert (await ask(client))[0] == 200
    await until(lambda: one.gateway.connections.count <= 20)
    assert await is_closed(idle[0])
    assert not await is_closed(idle[-1])


async def test_an_address_has_its_share_and_others_theirs(gateway, opened):
    one = await gateway(limits={"connections": 100, "connections_per_address": 10})
    other = await opened(one, 5, "127.0.0.2")
    await opened(one, 50, "127.0.0.1")
    await until(lambda: one.gateway.connections.count == 15)
    for client in other:
        assert (await ask(client))[0] == 200


async def test_an_address_that_uses_its_share_is_refused_for_now(gateway, opened):
    one = await gateway(limits={"connections": 100, "connections_per_address": 3})
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            url = f"{one.ws_url}/v1/realtime?model=parley"
            await stack.enter_async_context(connect(url, subprotocols=["realtime"], compression=None))
        (client,) = await opened(one, 1)
        status, raw = await ask(client, PAGE)
        assert (status, b'"too_many_connections"' in raw, b"connection: close" in raw.lower()) == (
            429,
            True,
            True,
        )
        with pytest.raises(InvalidStatus, match="429"):
            await connect(f"{one.ws_url}/v1/realtime?model=parley", subprotocols=["realtime"])
        healthy, other = await opened(one, 1) + await opened(one, 1, "127.0.0.2")
        assert (await ask(healthy))[0] == 200
        assert (await ask(other, PAGE))[0] == 200
    await until(lambda: one.gateway.connections.count <= 1)


async def test_more_than_there_is_room_for_is_answered_with_503(gateway, opened):
    one = await gateway(limits={"connections": 2})
    async with one.stream() as first, one.stream(await one.create()) as second:
        await receive(first, "connected")
        await receive(second, "connected")
        (client,) = await opened(one, 1)
        status, raw = await ask(client, PAGE)
        assert (status, b'"overloaded"' in raw, b"retry-after" in raw.lower()) == (503, True, True)
        (healthy,) = await opened(one, 1)
        assert (await ask(healthy))[0] == 200


def reached(url):
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


async def test_probes_are_answered_at_their_own_port_while_the_other_takes_nothing(
    gateway, opened, monkeypatch
):
    monkeypatch.setattr(connections, "_SPARE", 0)
    one = await gateway(listen={"health_port": 0}, limits={"connections": 2})
    async with one.stream() as first, one.stream(await one.create()) as second:
        await receive(first, "connected")
        await receive(second, "connected")
        await until(lambda: not one.gateway.connections._waiting)
        (client,) = await opened(one, 1)
        with pytest.raises((ConnectionError, IndexError)):
            await ask(client)  # nothing comes, not even a status
        async with httpx.AsyncClient(timeout=30, base_url=one.health_url) as http:
            for path in ("/healthz", "/readyz", "/health", "/ready", "/metrics"):
                assert (await http.get(path)).status_code == 200, path
            one.gateway.calls.drain_began.set()
            assert (await http.get("/readyz")).status_code == 503


async def test_port_of_probes_answers_probes_only(gateway):
    one = await gateway(listen={"health_port": 0})
    assert reached(one.health_url) != reached(one.url)
    async with httpx.AsyncClient(timeout=30, base_url=one.health_url) as http:
        for path in ("/", "/v1/models", "/openapi.json", "/asyncapi.json", "/docs"):
            assert (await http.get(path)).status_code == 404, path
        assert (await http.post("/v1/sessions", json={})).status_code == 404
    with pytest.raises(InvalidStatus):
        await connect(f"ws{one.health_url[4:]}/v1/realtime?model=parley", subprotocols=["realtime"])
    assert one.gateway.calls.count == 0


async def test_port_of_probes_has_the_same_access_rules(gateway, tmp_path):
    admin = new_key("ops", ["admin"])
    (tmp_path / "keys.toml").write_text(f"{admin.line}\n")
    one = await gateway(listen={"health_port": 0}, security={"keys_file": str(tmp_path / "keys.toml")})
    key = {"Authorization": f"Bearer {admin.secret}"}
    async with httpx.AsyncClient(timeout=30, base_url=one.health_url) as http:
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers=key)).status_code == 200
        assert "models" not in (await http.get("/readyz")).json()
        assert "models" in (await http.get("/readyz", headers=key)).json()
    anonymous = await gateway(listen={"health_port": 0})
    async with httpx.AsyncClient(
        timeout=30, base_url=anonymous.health_url, headers={"Host": "evil.example"}
    ) as http:
        assert (await http.get("/metrics")).status_code == 403
        answer = await http.get("/readyz")
        assert (answer.status_code, "models" in answer.json()) == (200, False)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_port_of_probes_has_a_bound_of_its_own(gateway, opened, monkeypatch):
    monkeypatch.setattr(serving, "SIDE_CONNECTIONS", 3)
    one = await gateway(listen={"health_port": 0})
    before = one.gateway.connections.count
    first, *idle = await opened(one, 3, to=one.health_url)
    async with httpx.AsyncClient(timeout=30, base_url=one.health_url) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert await is_closed(first)
        assert not await is_closed(idle[-1])
    assert one.gateway.connections.count == before


async def test_taken_port_of_probes_is_reported(gateway):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for name in ("health_port", "metrics_port"):
            with pytest.raises(GatewaySettingsError, match=rf"listen\.{name} chooses another"):
                await gateway(listen={name: taken.getsockname()[1]})


async def test_metrics_need_no_key_at_a_port_of_their_own(gateway, tmp_path):
    (tmp_path / "keys.toml").write_text(new_key("ops", ["agent"]).line + "\n")
    one = await gateway(
        listen={"metrics_port": 0, "metrics_host": "127.0.0.2"},
        security={"keys_file": str(tmp_path / "keys.toml")},
    )
    assert one.metrics_url.startswith("http://127.0.0.2:")
    assert one.health_url == ""
    assert (await one.http.get("/metrics")).status_code == 401
    async with httpx.AsyncClient(timeout=30, base_url=one.metrics_url) as http:
        page = await http.get("/metrics")
        assert page.status_code == 200
        assert 'parley_gateway_server_ready{server="server-0:1"} 1.0' in page.text
        for path in ("/", "/healthz", "/readyz", "/health", "/v1/models", "/openapi.json"):
            assert (await http.get(path)).status_code == 404, path
        assert (await http.post("/v1/sessions", json={})).status_code == 404
    anonymous = await gateway(listen={"metrics_port": 0, "health_port": 0})
    assert len({anonymous.url, anonymous.metrics_url, anonymous.health_url}) == 3
    async with httpx.AsyncClient(
        timeout=30, base_url=anonymous.metrics_url, headers={"Host": "evil.example"}
    ) as http:
        assert (await http.get("/metrics")).status_code == 403


async def test_clients_behind_a_trusted_proxy_have_shares_of_their_own(gateway):
    one = await gateway(
        limits={"connections": 100, "connections_per_address": 2},
        security={"trusted_proxies": ["127.0.0.1"], "insecure_allow_anonymous": True},
    )
    url = f"{one.ws_url}/v1/realtime?model=parley"

    def come(client):
        return connect(url, subprotocols=["realtime"], additional_headers={"X-Forwarded-For": client})

    async with come("198.51.100.1"), come("198.51.100.1"), come("198.51.100.2"):
        with pytest.raises(InvalidStatus, match="429"):
            await come("198.51.100.1")
        async with come("198.51.100.2"):
            pass
    await until(lambda: not one.gateway.connections._requests_of)


async def test_a_flood_is_one_line_in_the_log(gateway, opened, caplog, monkeypatch):
    monkeypatch.setattr(connections, "_SUMMARY_S", 0.2)
    one = await gateway(limits={"connections": 10, "connections_per_address": 5})
    await opened(one, 300)
    await until(lambda: any("crowded" in message for message in caplog.messages))
    async with asyncio.timeout(DEADLINE_S):
        while await one.metric("parley_gateway_connections_crowded_total") < 290:  # noqa: ASYNC110 - the count is asked for
            await asyncio.sleep(0.01)
    assert len([message for message in caplog.messages if "crowded" in message]) <= 1 + DEADLINE_S / 0.2
    assert "closed or refused, too many of one address" in caplog.text


async def test_a_process_without_descriptors_answers_still(gateway, opened, caplog, monkeypatch):
    """A descriptor is kept aside, and idle connections give up theirs; there is no traceback for each."""
    monkeypatch.setattr(connections, "_SUMMARY_S", 0.05)
    one = await gateway()
    idle = await opened(one, 20)
    (healthy,) = await opened(one, 1)
    await until(lambda: one.gateway.connections.count == 21)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    flood = [socket.socket() for _ in range(10)]
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(client.fileno() for client in flood) + 2, hard))
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        address = one.url.removeprefix("http://").split(":")
        for client in flood:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, (address[0], int(address[1])))
        assert (await ask(healthy))[0] == 200
        assert await is_closed(idle[0])
    finally:
        for number in fillers:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in flood:
            client.close()
    await until(lambda: "crowded" in caplog.text)
    assert "Traceback" not in caplog.text
    assert "out of system resource" not in caplog.text
    (client,) = await opened(one, 1)
    assert (await ask(client))[0] == 200


def test_the_limit_follows_the_descriptors(caplog):
    reserved = reserved_descriptors(servers=2, calls=256, stage_requests=64, side_ports=0)
    probed = reserved_descriptors(servers=2, calls=256, stage_requests=64, side_ports=1)
    assert probed - reserved > connections.SIDE_CONNECTIONS
    few, many = (ConnectionLimiter(2_000, 500, ClientAddresses(), Metrics()) for _ in range(2))
    many.fit(20_000, reserved)
    assert (many.limit, many.per_address, caplog.messages) == (2_000, 500, [])
    few.fit(1_024, reserved)
    assert 300 <= few.limit <= 1_024 - 300
    assert few.per_address <= few.limit // 2
    (message,) = caplog.messages
    assert "limits.connections is" in message
    assert "1024 descriptors" in message


async def test_gateway_with_few_descriptors_takes_fewer_connections(gateway, caplog, monkeypatch):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: raised.append(limit))
    one = await gateway(limits={"connections": 2_000}, calls={"limit": 16}, stages={"requests": 8})
    assert raised == [(resource.RLIMIT_NOFILE, (512, 512))]
    assert 0 < one.gateway.connections.limit < 512
    assert "limits.connections is" in caplog.text


async def test_a_connection_that_is_lost_without_being_closed_is_forgotten():
    limiter = ConnectionLimiter(10, 10, ClientAddresses(), Metrics())
    ours, theirs = socket.socketpair()
    assert limiter.add(ours, "192.0.2.1")
    assert limiter.count == 1
    number = ours.detach()
    del ours
    assert limiter.count == 0
    os.close(number)
    theirs.close()

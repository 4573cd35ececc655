"""What belongs to another gateway behind the same address is passed on to it by the gateway that gets it."""

import asyncio
import json
import secrets
import socket
import ssl
from contextlib import AsyncExitStack

import httpx
import pytest
from certificates import Authority
from gateways import Line
from listening_gateway import until
from starlette.requests import HTTPConnection
from test_real_channels import EchoServer
from twilio_line import sign
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from parley_gateway import peers as peers_module
from parley_gateway.apis.twilio import routes as twilio_routes
from parley_gateway.apis.twilio.transfers import ENDED, Transfers
from parley_gateway.connections import ConnectionLimiter
from parley_gateway.errors import TooManyConnectionsError
from parley_gateway.metrics import Metrics
from parley_gateway.peers import INSTANCE_HEADER, read_trust
from parley_gateway.security.addresses import ClientAddresses
from parley_gateway.security.keys import new_key
from parley_gateway.security.peer_seal import HEADER, PeerSeal
from parley_gateway.security.rates import Rates
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

PEERS = "dns://gateways.example:8080"


class Fleet:
    """Gateways of one address, in front of one server; any may get any request."""

    def __init__(self, stack, monkeypatch, folder):
        self._stack = stack
        self.addresses = []
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        self.key = new_key("ann", ["agent", "transcribe"])
        (folder / "keys.toml").write_text(f"{self.key.line}\n")
        (folder / "twilio").write_text("12345")
        self._twilio = {"auth_token_file": str(folder / "twilio")}
        self._security = {
            "keys_file": str(folder / "keys.toml"),
            "token_secret_file": str(secret),
            "trusted_proxies": ["127.0.0.1"],
        }

        async def resolve(name, port):
            assert (name, port) == ("gateways.example", 8080)
            return self.addresses

        monkeypatch.setattr(peers_module, "resolve_name", resolve)

    async def start(self, echo, instance, **listen):
        settings = load_settings(
            flags={
                "listen": {
                    "port": 0,
                    "instance": instance,
                    "peers": [PEERS],
                    "public_url": "https://voice.example",
                    **listen,
                },
                "twilio": self._twilio,
                "servers": {
                    "addresses": [f"127.0.0.1:{echo.port}"],
                    "metrics_url": "",
                    "check_s": 0.05,
                    "retry_s": 0.05,
                    "retry_max_s": 0.1,
                },
                "security": self._security,
            }
        )
        stop = AsyncExitStack()
        self._stack.push_async_callback(stop.aclose)
        one = await stop.enter_async_context(running(settings))
        address = one.url.partition("://")[2]
        self.addresses.append(address)
        certificate = listen.get("certificate")
        headers = {"Authorization": f"Bearer {self.key.secret}", "X-Forwarded-For": "203.0.113.9"}
        http = httpx.AsyncClient(timeout=30, base_url=one.url, headers=headers, verify=certificate is None)
        if certificate:
            http = httpx.AsyncClient(timeout=30, base_url=one.url, headers=headers, verify=False)  # noqa: S501 - the test's own
        await stop.enter_async_context(http)
        return Member(one, http, address, stop)


class Member:
    def __init__(self, one, http, address, stop):
        self.gateway = one.gateway
        self.http, self.address, self._stop = http, address, stop

    async def create(self):
        return (await self.http.post("/v1/sessions")).raise_for_status().json()

    def stream(self, created):
        """The stream of a session, at this gateway, with the token of the session."""
        return connect(
            f"ws://{self.address}/v1/sessions/{created['session_id']}/stream",
            subprotocols=["bearer", created["token"], "parley.v1"],
            compression=None,
            proxy=None,
        )

    async def stop(self):
        await self._stop.aclose()


@pytest.fixture
async def echo():
    server = EchoServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def fleet(monkeypatch, tmp_path):
    async with AsyncExitStack() as stack:
        yield Fleet(stack, monkeypatch, tmp_path)


@pytest.fixture
async def two(fleet, echo):
    return [await fleet.start(echo, name) for name in ("one", "two")]


async def first_message(socket, kind):
    async with asyncio.timeout(20):
        while (message := json.loads(await socket.recv()))["type"] != kind:
            pass
    return message


async def close_of(socket):
    async with asyncio.timeout(20):
        async for _ in socket:
            pass
    return socket.close_code, socket.close_reason


async def test_a_stream_opens_at_any_gateway_and_messages_go_both_ways(two):
    one, other = two
    created = await one.create()
    async with other.stream(created) as socket:
        assert socket.subprotocol == "parley.v1"
        connected = await first_message(socket, "connected")
        assert connected["session_id"] == created["session_id"]
        assert (one.gateway.calls.count, other.gateway.calls.count) == (1, 0)
        status = (await other.http.get(f"/v1/sessions/{created['session_id']}/status")).json()
        assert status["state"] == "open"
        await socket.send(bytes(640))
        await socket.send(json.dumps({"type": "control", "action": "hangup"}))
        assert await close_of(socket) == (1000, "ended")
    await until(lambda: one.gateway.calls.count == 0)


async def test_requests_of_a_session_are_answered_by_its_gateway(two):
    one, other = two
    created = await one.create()
    path = f"/v1/sessions/{created['session_id']}"
    tools = {"tools": [{"name": "get_weather"}]}
    assert (await other.http.post(f"{path}/tools", json=tools)).json() == {"responses": 0, "tools": 1}
    refused = await other.http.post(f"{path}/tools", json={"tools": [{"nothing": 1}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_message")
    assert (await other.http.delete(path)).status_code == 204
    assert (await one.http.get(f"{path}/status")).json()["reason"] == "deleted"
    anonymous = httpx.AsyncClient(timeout=30, base_url=str(other.http.base_url))
    assert (await anonymous.get(f"{path}/status")).status_code == 401
    await anonymous.aclose()


async def test_the_settings_of_a_client_secret_are_used_at_any_gateway(two):
    one, other = two
    session = {"session": {"type": "realtime", "instructions": "Speak like a pirate."}}
    made = (await one.http.post("/v1/realtime/client_secrets", json=session)).raise_for_status().json()
    headers = {"Authorization": f"Bearer {made['value']}"}
    url = f"ws://{other.address}/v1/realtime"
    async with connect(url, additional_headers=headers, compression=None, proxy=None) as socket:
        created = await first_message(socket, "session.created")
    assert created["session"]["instructions"] == "Speak like a pirate."


async def test_a_refusal_of_the_other_gateway_is_passed_on(two):
    one, other = two
    created = await one.create()
    async with other.stream(created) as socket:
        await first_message(socket, "connected")
        with pytest.raises(InvalidStatus) as refused:
            async with connect(
                f"ws://{other.address}/v1/sessions/{created['session_id']}/stream",
                additional_headers={"Authorization": other.http.headers["authorization"]},
                proxy=None,
            ):
                pass
        assert refused.value.response.status_code == 409
        assert b"session_in_use" in refused.value.response.body


async def test_a_telephone_call_goes_on_as_the_gateway_says_that_had_its_stream(fleet, echo, monkeypatch):
    made = []

    class OfGateway(Transfers):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(twilio_routes, "Transfers", OfGateway)
    _, other = [await fleet.start(echo, name) for name in ("one", "two")]
    form = {"CallSid": "CA1"}
    address = f"https://voice.example{ENDED}"
    signed = {"X-Twilio-Signature": sign(address, form)}
    with made[0].offer("CA1", "<Response/>") as taken:
        assert (await other.http.post(ENDED, data={"CallSid": "CA2"}, headers=signed)).status_code == 401
        answer = await other.http.post(ENDED, data=form, headers=signed)
        assert (answer.text, answer.headers["content-type"]) == ("<Response/>", "application/xml")
        assert taken.is_set()
        assert "<Hangup/>" in (await other.http.post(ENDED, data=form, headers=signed)).text


async def test_end_of_a_telephone_call_is_answered_beside_a_gateway_that_is_silent(fleet, echo, monkeypatch):
    _, other = [await fleet.start(echo, name) for name in ("one", "two")]
    asked = []

    async def silence(*_):
        asked.append(True)
        await asyncio.Event().wait()

    monkeypatch.setattr(other.gateway.peers, "pass_on", silence)
    monkeypatch.setattr(peers_module, "_OTHERS_S", 0.05)
    form = {"CallSid": "CA1"}
    signed = {"X-Twilio-Signature": sign(f"https://voice.example{ENDED}", form)}
    async with asyncio.timeout(20):
        assert "<Hangup/>" in (await other.http.post(ENDED, data=form, headers=signed)).text
    assert asked


async def test_a_gateway_that_is_gone_is_an_error_and_no_loop(two, fleet, echo):
    one, other = two
    created = await one.create()
    path = f"/v1/sessions/{created['session_id']}/status"
    assert (await other.http.get(path)).status_code == 200
    await one.stop()
    answer = await other.http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "wrong_gateway")
    # Its address belongs to another one meanwhile: that does not pass it on again.
    other.gateway.peers._addresses = {"one": other.address}
    other.gateway.peers._asked_at = float("inf")
    assert (await other.http.get(path)).status_code == 404


async def test_a_stream_that_was_passed_on_ends_with_either_gateway(two):
    one, other = two
    for index in (0, 1):
        created = await one.create()
        async with other.stream(created) as socket:
            await first_message(socket, "connected")
            # As at the end of the grace time.
            two[index].gateway.calls.going_away.set()
            assert await close_of(socket) == (1001, "going_away")
        two[index].gateway.calls.going_away.clear()
        await until(lambda: one.gateway.calls.count == 0)


async def test_the_client_counts_with_its_own_address(two, monkeypatch):
    one, other = two
    created = await one.create()
    seen = []
    find = ClientAddresses.of

    def note(self, connection):
        found = find(self, connection)
        if connection.url.path.endswith("/status"):
            seen.append((self is one.gateway.guard.addresses, found))
        return found

    monkeypatch.setattr(ClientAddresses, "of", note)
    await other.http.get(f"/v1/sessions/{created['session_id']}/status")
    assert set(seen) >= {(True, "203.0.113.9"), (False, "203.0.113.9")}


async def test_a_request_that_is_passed_on_counts_once(two, monkeypatch):
    one, other = two
    created = await one.create()
    counted = []
    hit = Rates.hit

    async def note(self, what, who, own=None):
        counted.append(what)
        await hit(self, what, who, own)

    monkeypatch.setattr(Rates, "hit", note)
    await other.http.get(f"/v1/sessions/{created['session_id']}/status")
    assert sorted(counted) == ["ip_requests", "key_requests"]
    counted.clear()
    async with other.stream(created) as socket:
        await first_message(socket, "connected")
    assert sorted(counted) == ["ip_requests", "ip_sessions", "key_requests", "key_sessions"]


def sealed(value, path="/x"):
    return HTTPConnection(
        {"type": "http", "path": path, "headers": [(HEADER.encode(), value.encode())], "server": ("a", 1)}
    )


def test_only_gateways_with_the_secret_say_whose_request_it_is():
    now = [1_000.0]
    seal = PeerSeal(b"s" * 32, lambda: now[0])
    value = seal.make("203.0.113.9", "/x")
    assert seal.read(sealed(value)) == "203.0.113.9"
    assert PeerSeal(b"t" * 32, lambda: now[0]).read(sealed(value)) is None
    assert seal.read(sealed(value, "/y")) is None
    for forged in ("", "203.0.113.9", "203.0.113.9 1 x", "203.0.113.8" + value[11:], value + "0", "a ² b"):
        assert seal.read(sealed(forged)) is None, forged
    now[0] += 120
    assert seal.read(sealed(value)) is None


async def test_gateways_with_tls_trust_their_common_certificate(fleet, echo, tmp_path):
    certificate, key = Authority().issue("voice.example.com")
    for name, content in (("cert.pem", certificate), ("key.pem", key)):
        (tmp_path / name).write_bytes(content)
    files = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    one, other = [await fleet.start(echo, name, **files) for name in ("one", "two")]
    created = await one.create()
    answer = await other.http.get(f"/v1/sessions/{created['session_id']}/status")
    assert answer.json()["state"] == "waiting"
    assert (await one.http.get("/healthz")).headers[INSTANCE_HEADER] == "one"


async def test_a_stream_ends_when_the_other_gateway_falls_silent(two, monkeypatch):
    one, other = two
    monkeypatch.setattr(peers_module, "_PING_S", 0.1)
    monkeypatch.setattr(peers_module, "_CLOSE_S", 0.1)
    other.gateway.peers._stall_s = 0.1
    created = await one.create()
    line = Line(int(one.address.rpartition(":")[2]))
    await line.start()
    other.gateway.peers._addresses = {"one": line.url.removeprefix("http://")}
    other.gateway.peers._asked_at = float("inf")
    async with other.stream(created) as socket:
        await first_message(socket, "connected")
        line.freeze()
        with pytest.raises(ConnectionClosedError, match="call_lost"):
            await close_of(socket)
    await line.stop()


async def test_headers_beyond_ascii_are_passed_on(two):
    one, other = two
    created = await one.create()
    headers = {"X-Note": "na\u00efve".encode()}
    answer = await other.http.get(f"/v1/sessions/{created['session_id']}/status", headers=headers)
    assert answer.status_code == 200


async def test_a_token_for_one_use_opens_one_connection_at_any_gateway(two, monkeypatch):
    used = set()

    async def use_at_common_store(_, name, ttl_s):
        assert ttl_s > 0
        is_first = name not in used
        used.add(name)
        return is_first

    monkeypatch.setattr(Rates, "first", use_at_common_store)
    one, other = two
    made = await one.http.post("/v1/tokens", json={"single_use": True})
    headers = {"Authorization": f"Bearer {made.raise_for_status().json()['token']}"}
    for is_new, member in ((True, other), (False, other), (False, one)):
        opening = connect(f"ws://{member.address}/v1/realtime", additional_headers=headers, proxy=None)
        if is_new:
            async with opening as socket:
                await first_message(socket, "session.created")
        else:
            with pytest.raises(InvalidStatus, match="401"):
                await opening


async def test_request_without_credentials_reaches_no_peer(two, monkeypatch):
    other = two[1]
    monkeypatch.setattr(other.gateway.peers, "_ask_all", None)
    headers = {"Authorization": "Bearer ek_ghost_x"}
    with pytest.raises(InvalidStatus, match="401"):
        await connect(f"ws://{other.address}/v1/realtime", additional_headers=headers, proxy=None)


async def test_known_gateways_are_found_while_others_do_not_answer(two, monkeypatch):
    one, other = two
    created = await one.create()
    path = f"/v1/sessions/{created['session_id']}/status"
    assert (await other.http.get(path)).status_code == 200
    monkeypatch.setattr(peers_module, "_FRESH_S", float("inf"))
    async with other.gateway.peers._asking, asyncio.timeout(20):
        assert (await other.http.get(path)).status_code == 200


async def test_a_certificate_that_is_gone_for_a_moment_is_as_no_other_gateway(two, tmp_path):
    one, other = two
    created = await one.create()
    other.gateway.peers._certificate = str(tmp_path / "missing.pem")
    answer = await other.http.get(f"/v1/sessions/{created['session_id']}/status")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "wrong_gateway")


def shake_hands(trust, served, folder):
    """Let a client that trusts so connect to a server with these files."""
    for name, content in zip(("served.pem", "served.key"), served, strict=True):
        (folder / name).write_bytes(content)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(folder / "served.pem", folder / "served.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    client = trust.context.wrap_bio(to_client, to_server, server_hostname=trust.name or "10.0.0.1")
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_certificate_of_the_same_authority_for_another_name_is_refused(tmp_path):
    authority = Authority()
    own = authority.issue("voice.example.com")
    (tmp_path / "chain.pem").write_bytes(own[0] + authority.certificate)
    trust = read_trust(tmp_path / "chain.pem")
    shake_hands(trust, own, tmp_path)
    shake_hands(trust, authority.issue("voice.example.com"), tmp_path)  # renewed
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(trust, authority.issue("other.example.net"), tmp_path)
    (tmp_path / "chain.pem").write_bytes(b"-----BEGIN CERTIFICATE-----")
    with pytest.raises(OSError, match="cannot be used"):
        read_trust(tmp_path / "chain.pem")


async def test_clients_of_another_gateway_do_not_count_as_one_address():
    seal = PeerSeal(b"s" * 32)
    limiter = ConnectionLimiter(8, 1, ClientAddresses((), seal), Metrics())
    pairs = [socket.socketpair() for _ in range(2)]
    for ours, _ in pairs:
        limiter.add(ours, "10.0.0.7")
        limiter.busy(ours.fileno())

    def request(value):
        connection = sealed(value)
        connection.scope["client"] = ("10.0.0.7", 1)
        return limiter.request(connection)

    with pytest.raises(TooManyConnectionsError), request("forged"):
        pass
    one, another = (seal.make(f"203.0.113.{last}", "/x") for last in (8, 9))
    with request(one), request(another), pytest.raises(TooManyConnectionsError), request(one):
        pass
    for pair in pairs:
        for end in pair:
            end.close()

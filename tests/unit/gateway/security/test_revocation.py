"""What keys, JWTs and tokens open, and when that ends."""

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from listening_gateway import closed, until
from rtc_client import RtcClient, forgotten
from starlette.requests import Request
from websockets.asyncio.client import connect

from parley_gateway.errors import (
    CredentialsExpiredError,
    CredentialsRevokedError,
    ForbiddenError,
    UnauthorizedError,
)
from parley_gateway.security.guard import Guard
from parley_gateway.security.keys import hash_secret, new_key
from parley_gateway.security.settings import JwtSettings, SecuritySettings
from parley_gateway.streaming import StreamedAnswer, while_connected

SECRET = b"0123456789abcdef0123456789abcdef"
SCOPES = ("agent", "chat", "speak", "transcribe")


def bearer(credential):
    return {"Authorization": f"Bearer {credential}"}


def signed(expires_in_s, **claims):
    now = time.time()
    claims = {
        "iss": "issuer",
        "aud": "parley",
        "sub": "ann",
        "scope": list(SCOPES),
        "exp": now + expires_in_s,
        **claims,
    }
    return jwt.encode(claims, SECRET, algorithm="HS256")


@pytest.fixture
def jwt_settings(tmp_path):
    (tmp_path / "jwt").write_bytes(SECRET)
    return {"issuer": "issuer", "algorithms": ("HS256",), "key_file": str(tmp_path / "jwt")}


@pytest.fixture
def jwt_guard(jwt_settings):
    return Guard(SecuritySettings(), JwtSettings(**jwt_settings, stay_open_s=100.0))


@pytest.fixture
def key_guard(keys_file):
    return Guard(SecuritySettings(keys_file=str(keys_file.path)))


# --- tokens -----------------------------------------------------------------------------------


async def test_a_token_does_not_outlive_the_jwt_that_it_was_made_from(jwt_guard, connection, clock):
    brought = signed(30)
    owner = await jwt_guard.admit(connection(authorization=f"Bearer {brought}"), "agent")
    grant = jwt_guard.grant(owner, ttl_s=3_600)
    assert grant.expires_at <= clock.now + 30
    assert await jwt_guard.admit(connection(authorization=f"Bearer {grant.token}"), "agent")


async def test_no_token_is_made_from_a_jwt_that_has_expired_within_the_leeway(jwt_guard, connection):
    owner = await jwt_guard.admit(connection(authorization=f"Bearer {signed(-5)}"), "agent")
    with pytest.raises(UnauthorizedError, match="expire"):
        jwt_guard.grant(owner, ttl_s=60)


async def test_a_token_does_not_outlive_the_key_that_it_was_made_from(keys_file, connection):
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=20)
    made = new_key("short", ["agent"], ends)
    keys_file.write(made.line)
    guard = Guard(SecuritySettings(keys_file=str(keys_file.path)))
    owner = await guard.admit(connection(authorization=f"Bearer {made.secret}"), "agent")
    assert guard.grant(owner, ttl_s=3_600).expires_at <= ends.timestamp()


async def test_a_key_that_is_prolonged_keeps_its_connections(keys_file, connection):
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    made = new_key("short", ["agent"], ends)
    keys_file.write(made.line)
    guard = Guard(SecuritySettings(keys_file=str(keys_file.path)))
    owner = await guard.admit(connection(authorization=f"Bearer {made.secret}"), "agent")
    admitted = replace(owner, expires_at=time.time() - 1)
    guard.check_root(admitted, "agent")
    keys_file.write(made.line.replace(str(ends.year), "2020"))
    guard.reload()
    with pytest.raises(CredentialsExpiredError):
        guard.check_root(admitted, "agent")


async def test_a_token_makes_no_further_tokens(jwt_guard, connection):
    owner = await jwt_guard.admit(connection(authorization=f"Bearer {signed(30)}"), "agent")
    token = jwt_guard.grant(owner).token
    holder = await jwt_guard.admit(connection(authorization=f"Bearer {token}"), "agent")
    with pytest.raises(ForbiddenError):
        jwt_guard.grant(holder, ttl_s=1)


async def test_tokens_end_with_the_secret_of_their_key(keys_file, key_guard, connection):
    owner = await key_guard.admit(connection(authorization=f"Bearer {keys_file.key}"), "agent")
    token = key_guard.grant(owner).token
    scopes = ", ".join(f'"{scope}"' for scope in SCOPES)
    keys_file.write(
        f'{keys_file.id} = {{scopes = [{scopes}], sha256 = "{hash_secret(keys_file.id, "other")}"}}'
    )
    key_guard.reload()
    with pytest.raises(UnauthorizedError, match="replaced"):
        await key_guard.admit(connection(authorization=f"Bearer {token}"), "agent")
    with pytest.raises(CredentialsRevokedError):
        key_guard.check_root(owner, "agent")


# --- what is open -----------------------------------------------------------------------------


async def test_a_key_without_the_scope_any_more_lets_nothing_stay(keys_file, key_guard, connection):
    owner = await key_guard.admit(connection(authorization=f"Bearer {keys_file.key}"), "agent")
    key_guard.check_root(owner, "agent")
    keys_file.write(keys_file.line.replace('"agent", ', ""))
    key_guard.reload()
    key_guard.check_root(owner, "speak")
    with pytest.raises(CredentialsRevokedError):
        key_guard.check_root(owner, "agent")


async def test_a_file_that_cannot_be_read_revokes_nothing(keys_file, key_guard, connection):
    owner = await key_guard.admit(connection(authorization=f"Bearer {keys_file.key}"), "agent")
    keys_file.path.write_text("not TOML")
    key_guard.reload()
    key_guard.check_root(owner, "agent")


async def test_connection_outlives_its_jwt_by_stay_open_s(jwt_guard, connection, clock):
    owner = await jwt_guard.admit(connection(authorization=f"Bearer {signed(30)}"), "agent")
    token = jwt_guard.grant(owner).token
    holder = await jwt_guard.admit(connection(authorization=f"Bearer {token}"), "agent")
    clock.advance(129)
    for principal in (owner, holder):
        jwt_guard.check_root(principal, "agent")
    clock.advance(2)
    for principal in (owner, holder):
        with pytest.raises(CredentialsExpiredError):
            jwt_guard.check_root(principal, "agent")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("parley_gateway.security.guard.CHECK_EVERY_S", 0.01)


def revoke(one, keys_file):
    keys_file.write("")
    one.gateway.guard.reload()


async def token_of(one, keys_file, path="/v1/tokens"):
    answer = await one.http.post(
        path, json={"scopes": SCOPES} if "tokens" in path else {}, headers=bearer(keys_file.key)
    )
    assert answer.status_code in (200, 201), answer.text
    return answer.json().get("token") or answer.json()["value"]


@pytest.mark.parametrize("made", [None, "/v1/tokens", "/v1/realtime/client_secrets"])
@pytest.mark.parametrize("talking", [True, False])
async def test_a_revoked_key_closes_what_it_and_its_tokens_have_opened(
    guarded, keys_file, caplog, made, talking
):
    caplog.set_level("INFO", "parley.audit")
    one = await guarded()
    credential = keys_file.key if made is None else await token_of(one, keys_file, made)
    async with connect(f"{one.ws_url}/v1/realtime", additional_headers=bearer(credential)) as socket:
        if talking:
            await socket.send(json.dumps({"type": "session.update", "session": {"type": "realtime"}}))
            await until(lambda: one.gateway.calls.count == 1)
        revoke(one, keys_file)
        assert await closed(socket) == (1008, "credentials_revoked")
    await until(lambda: one.gateway.calls.count == 0)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "parley.audit"]
    (line,) = [line for line in lines if line["event"] == "revoked"]
    assert (line["who"], line["scope"], line["code"]) == (keys_file.id, "agent", "credentials_revoked")


async def test_a_revoked_key_closes_its_streams(guarded, keys_file):
    one = await guarded()
    answer = await one.http.post("/v1/sessions", headers=bearer(keys_file.key))
    url = f"{one.ws_url}/v1/sessions/{answer.json()['session_id']}/stream"
    async with connect(url, additional_headers=bearer(answer.json()["token"])) as socket:
        await until(lambda: one.gateway.calls.count == 1)
        revoke(one, keys_file)
        assert await closed(socket) == (1008, "credentials_revoked")


async def test_a_revoked_key_closes_its_webrtc_calls(guarded, keys_file):
    one = await guarded()
    one.http.headers.update(bearer(await token_of(one, keys_file, "/v1/realtime/client_secrets")))
    client = RtcClient(one.http)
    try:
        await client.offer()
        await client.receive("session.created")
        revoke(one, keys_file)
        error = await client.receive("error")
        assert error["error"]["code"] == "credentials_revoked"
        await forgotten(client.location)
    finally:
        await client.close()


async def test_other_keys_keep_what_they_have_opened(guarded, keys_file):
    other = new_key("other", ["agent"])
    keys_file.write(keys_file.line, other.line)
    one = await guarded()
    async with (
        connect(f"{one.ws_url}/v1/realtime", additional_headers=bearer(keys_file.key)) as revoked,
        connect(f"{one.ws_url}/v1/realtime", additional_headers=bearer(other.secret)) as kept,
    ):
        keys_file.write(other.line)
        one.gateway.guard.reload()
        assert await closed(revoked) == (1008, "credentials_revoked")
        await asyncio.sleep(0.1)
        await kept.send(json.dumps({"type": "session.update", "session": {"type": "realtime"}}))
        await until(lambda: one.gateway.calls.count == 1)


async def never(*_):
    await asyncio.get_running_loop().create_future()


async def test_a_revoked_key_ends_an_answer_that_is_waited_for(keys_file, key_guard, connection, monkeypatch):
    monkeypatch.setattr("parley_gateway.security.guard.CHECK_EVERY_S", 0.01)
    request = Request(connection(authorization=f"Bearer {keys_file.key}").scope, receive=never)
    await key_guard.admit(request, "agent")
    keys_file.write("")
    key_guard.reload()
    with pytest.raises(CredentialsRevokedError):
        await while_connected(request, never())


async def test_a_revoked_key_ends_an_answer_that_is_being_sent(keys_file, key_guard, connection, monkeypatch):
    monkeypatch.setattr("parley_gateway.security.guard.CHECK_EVERY_S", 0.01)
    request = connection(authorization=f"Bearer {keys_file.key}")
    await key_guard.admit(request, "agent")
    sent = []

    async def send(message):
        sent.append(message)

    async def parts():
        yield b"more"
        keys_file.write("")
        key_guard.reload()
        await never()

    async with aclosing(parts()) as body:
        await StreamedAnswer(b"first", body, media_type="text/plain", stall_s=5)(request.scope, never, send)
    assert [message.get("body") for message in sent] == [None, b"first", b"more"]

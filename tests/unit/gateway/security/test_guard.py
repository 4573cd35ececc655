"""Who is let in, as every API asks."""

import json
import logging
from dataclasses import replace

import jwt
import pytest

from parley_gateway.errors import ForbiddenError, GatewaySettingsError, RateLimitedError, UnauthorizedError
from parley_gateway.security.guard import Guard
from parley_gateway.security.keys import PREFIX as PREFIX_OF_KEYS
from parley_gateway.security.keys import new_key
from parley_gateway.security.peer_seal import PeerSeal
from parley_gateway.security.principal import Principal
from parley_gateway.security.settings import JwtSettings, RateSettings, SecuritySettings
from parley_gateway.security.tokens import PREFIX, SessionTokens

JWT_SECRET = "j" * 40


@pytest.fixture
def guard(keys_file):
    return Guard(SecuritySettings(keys_file=str(keys_file.path)))


@pytest.fixture
def audited(caplog):
    caplog.set_level(logging.INFO, "parley.audit")
    return lambda: [json.loads(record.message) for record in caplog.records if record.name == "parley.audit"]


def bearer(credential):
    return {"authorization": f"Bearer {credential}"}


# --- keys and anonymous use -------------------------------------------------------------------


@pytest.mark.parametrize("credential", ["parley_x_y", "sk-something", "a.b.c", "ek_a.b.c", ""])
async def test_other_credentials_are_refused(guard, connection, credential):
    headers = {"x_api_key": credential} if credential else {}
    with pytest.raises(UnauthorizedError):
        await guard.admit(connection(**headers), "agent")


async def test_the_audit_log_has_the_whole_path(guard, audited, connection):
    path = "/v1/sessions/a?b#c\r\nd/status"
    with pytest.raises(UnauthorizedError):
        await guard.admit(connection(path=path), "agent")
    assert audited()[-1]["path"] == path


async def test_any_key_without_authentication_is_anonymous(connection):
    guard = Guard()
    for headers in ({}, bearer("anything")):
        principal = await guard.admit(connection(**headers), "agent")
        assert (principal.id, principal.kind) == ("anonymous", "anonymous")
    with pytest.raises(ForbiddenError):
        await guard.admit(connection(), "admin")
    with pytest.raises(UnauthorizedError, match="URLs"):
        await guard.admit(connection(query="token=x"), "agent")


def test_keys_and_no_keys_at_once_is_a_mistake(keys_file):
    settings = SecuritySettings(keys_file=str(keys_file.path), insecure_allow_anonymous=True)
    with pytest.raises(GatewaySettingsError, match="contradicts"):
        Guard(settings)


async def test_a_jwt_lets_in_beside_keys(keys_file, tmp_path, connection):
    (tmp_path / "secret").write_text(JWT_SECRET)
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)),
        JwtSettings(issuer="me", algorithms=("HS256",), key_file=str(tmp_path / "secret")),
    )
    claims = {"iss": "me", "aud": "parley", "sub": keys_file.id, "exp": 4_000_000_000, "scope": "agent"}
    principal = await guard.admit(connection(**bearer(jwt.encode(claims, JWT_SECRET))), "agent")
    # A subject is never mistaken for the key of the same name.
    assert principal.id == f"jwt:{keys_file.id}"
    assert (await guard.admit(connection(**bearer(keys_file.key)), "agent")).id == keys_file.id


# --- session tokens ---------------------------------------------------------------------------


@pytest.fixture
async def owner(guard, keys_file, connection):
    return await guard.admit(connection(**bearer(keys_file.key)), "agent")


async def test_a_token_is_its_owner_with_less(guard, owner, connection):
    token = guard.grant(owner, ttl_s=30, session_id="s-1").token
    offered = connection("websocket", sec_websocket_protocol=f"realtime, openai-insecure-api-key.{token}")
    principal = await guard.admit(offered, "agent", session_id="s-1")
    assert (principal.id, principal.session_id, principal.kind) == (owner.id, "s-1", "token")
    assert principal.scopes == {"agent"}


async def test_a_token_opens_no_other_session_and_no_other_api(guard, owner, connection):
    brought = bearer(guard.grant(owner, session_id="s-1").token)
    with pytest.raises(ForbiddenError, match="another session"):
        await guard.admit(connection(**brought), "agent", session_id="s-2")
    with pytest.raises(ForbiddenError, match="another session"):
        await guard.admit(connection(**brought), "agent")
    with pytest.raises(ForbiddenError, match="scope chat"):
        await guard.admit(connection(**brought), "chat", session_id="s-1")


async def test_a_single_use_token_is_refused_when_replayed(guard, owner, connection):
    brought = bearer(guard.grant(owner, single_use=True).token)
    assert await guard.admit(connection("websocket", **brought), "agent")
    with pytest.raises(UnauthorizedError, match="used before"):
        await guard.admit(connection("websocket", **brought), "agent")


async def test_to_be_refused_does_not_use_a_token_up(guard, owner, connection):
    brought = bearer(guard.grant(owner, single_use=True).token)
    with pytest.raises(ForbiddenError):
        await guard.admit(connection(**brought), "chat")
    assert await guard.admit(connection(**brought), "agent")


async def test_an_expired_token_is_refused(tmp_path, keys_file, connection):
    (tmp_path / "secret").write_bytes(b"x" * 32)
    guard = Guard(SecuritySettings(keys_file=str(keys_file.path), token_secret_file=str(tmp_path / "secret")))
    owner = await guard.admit(connection(**bearer(keys_file.key)), "agent")
    late = SessionTokens(b"x" * 32, clock=lambda: 1_000_000.0)
    token = late.issue(owner, ttl_s=60, scopes=["agent"]).token
    with pytest.raises(UnauthorizedError, match="expired"):
        await guard.admit(connection(**bearer(token)), "agent")
    assert await guard.admit(connection(**bearer(guard.grant(owner).token)), "agent")


async def test_a_token_of_another_gateway_is_refused(guard, keys_file, connection, owner):
    other = Guard(SecuritySettings(keys_file=str(keys_file.path)))
    with pytest.raises(UnauthorizedError):
        await other.admit(connection(**bearer(guard.grant(owner).token)), "agent")


async def test_a_token_cannot_be_exchanged_for_another(guard, owner, connection):
    principal = await guard.admit(connection(**bearer(guard.grant(owner).token)), "agent")
    with pytest.raises(ForbiddenError, match="cannot be exchanged"):
        guard.grant(principal)


async def test_grant_beyond_the_owners_rights_is_refused(guard, owner):
    with pytest.raises(ForbiddenError, match="admin"):
        guard.grant(owner, scopes=["agent", "admin"])
    bound = replace(owner, session_id="s-1")
    with pytest.raises(ForbiddenError, match="one session"):
        guard.grant(bound, session_id="s-2")
    with pytest.raises(ForbiddenError, match="one session"):
        guard.grant(bound)


async def test_a_token_lasts_no_longer_than_allowed(keys_file, owner):
    guard = Guard(SecuritySettings(keys_file=str(keys_file.path), token_ttl_s=20, token_max_ttl_s=120))
    for asked, given in ((None, 20), (1e9, 120), (-5, 1), (50, 50)):
        token = guard.grant(owner, ttl_s=asked).token.removeprefix(PREFIX).partition("_")[2]
        claims = jwt.decode(token, options={"verify_signature": False})
        assert claims["exp"] - claims["iat"] == given


async def test_a_token_ends_with_the_key_behind_it(guard, owner, keys_file, connection):
    brought = bearer(guard.grant(owner).token)
    keys_file.write("# none")
    guard.reload()
    with pytest.raises(UnauthorizedError, match="no longer valid"):
        await guard.admit(connection(**brought), "agent")


async def test_a_token_loses_what_its_key_loses(guard, owner, keys_file, connection):
    brought = bearer(guard.grant(owner, scopes=["agent", "chat"]).token)
    keys_file.write(keys_file.line.replace('"chat", ', ""))
    guard.reload()
    assert await guard.admit(connection(**brought), "agent")
    with pytest.raises(ForbiddenError, match="scope chat"):
        await guard.admit(connection(**brought), "chat")


async def test_an_anonymous_token_is_worth_nothing_once_keys_are_needed(tmp_path, keys_file, connection):
    (tmp_path / "secret").write_bytes(b"x" * 32)
    open_guard = Guard(SecuritySettings(token_secret_file=str(tmp_path / "secret")))
    token = open_guard.grant(await open_guard.admit(connection(), "agent")).token
    assert await open_guard.admit(connection(**bearer(token)), "agent")
    guard = Guard(SecuritySettings(keys_file=str(keys_file.path), token_secret_file=str(tmp_path / "secret")))
    with pytest.raises(UnauthorizedError, match="no longer accepted"):
        await guard.admit(connection(**bearer(token)), "agent")


# --- how often --------------------------------------------------------------------------------


async def test_guessing_is_stopped_and_forgotten_again(keys_file, connection, clock):
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)), rates=RateSettings(auth_failures="3/minute")
    )
    guess = bearer(f"{PREFIX_OF_KEYS}{keys_file.id}_guess")
    for _ in range(3):
        with pytest.raises(UnauthorizedError):
            await guard.admit(connection(**guess), "agent")
    with pytest.raises(RateLimitedError, match="wrong credentials") as caught:
        await guard.admit(connection(**bearer(keys_file.key)), "agent")
    assert 1 <= caught.value.retry_after_s <= 120
    assert await guard.admit(connection(client="192.0.2.8", **bearer(keys_file.key)), "agent")
    clock.advance(121)
    assert await guard.admit(connection(**bearer(keys_file.key)), "agent")


@pytest.mark.parametrize("guess", ["parley_nobody_guess", "ek_a.b.c", "a.b.c", "guess"])
async def test_guesses_from_one_address_block_no_other(keys_file, connection, clock, guess):
    other = new_key("other", ["agent"])
    keys_file.write(keys_file.line, other.line)
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)), rates=RateSettings(auth_failures="3/minute")
    )
    owner = await guard.admit(connection(**bearer(keys_file.key)), "agent")
    token = guard.grant(owner).token
    for wrong in (guess, keys_file.key + "x"):
        for _ in range(3):
            with pytest.raises(UnauthorizedError):
                await guard.admit(connection(**bearer(wrong)), "agent")
        with pytest.raises(RateLimitedError, match="wrong credentials"):
            await guard.admit(connection(**bearer(wrong)), "agent")
        for right in (other.secret, token):
            assert await guard.admit(connection(**bearer(right)), "agent")


async def test_to_bring_nothing_is_no_guess(keys_file, connection):
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)), rates=RateSettings(auth_failures="1/minute")
    )
    for _ in range(3):
        with pytest.raises(UnauthorizedError):
            await guard.admit(connection(), "agent")


async def test_passed_on_request_is_not_counted_again(keys_file, connection, clock):
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)),
        rates=RateSettings(
            ip_requests="2/minute", ip_sessions="1/minute", key_requests="1/minute", key_sessions="1/minute"
        ),
    )
    brought = bearer(keys_file.key)
    sealed = guard.peer_seal.make("192.0.2.7", "/v1/sessions")
    for _ in range(3):
        await guard.count(connection(parley_peer=sealed))
        await guard.identify(connection(parley_peer=sealed, **brought))
        assert await guard.admit(connection("websocket", parley_peer=sealed, **brought), "agent")
    assert await guard.admit(connection("websocket", **brought), "agent")
    other_seal = PeerSeal(b"s" * 32)
    for forged in (other_seal.make("192.0.2.7", "/v1/sessions"), sealed + "0", "192.0.2.7"):
        with pytest.raises(RateLimitedError):
            await guard.admit(connection("websocket", parley_peer=forged, **brought), "agent")
    with pytest.raises(RateLimitedError):
        await guard.admit(connection(path="/v1/tokens", parley_peer=sealed, **brought), "agent")


async def test_a_key_is_limited_and_recovers(keys_file, connection, clock):
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)), rates=RateSettings(key_requests="2/minute")
    )
    brought = bearer(keys_file.key)
    for _ in range(2):
        await guard.admit(connection(**brought), "agent")
    with pytest.raises(RateLimitedError, match="these credentials") as caught:
        await guard.admit(connection(client="192.0.2.99", **brought), "agent")
    clock.advance(caught.value.retry_after_s + 60)
    assert await guard.admit(connection(**brought), "agent")


async def test_a_key_may_have_limits_of_its_own(keys_file, connection):
    keys_file.write(keys_file.line.replace("name", 'limits = {sessions = "1/hour"}, name', 1))
    guard = Guard(SecuritySettings(keys_file=str(keys_file.path)))
    owner = await guard.admit(connection("websocket", **bearer(keys_file.key)), "agent")
    for credential in (keys_file.key, guard.grant(owner).token):
        with pytest.raises(RateLimitedError):
            await guard.admit(connection("websocket", **bearer(credential)), "agent")
    assert await guard.admit(connection("http", **bearer(keys_file.key)), "agent")


async def test_websockets_of_an_address_are_limited(connection):
    guard = Guard(rates=RateSettings(ip_sessions="2/minute"))
    for client in ("2001:db8::1", "2001:db8::2"):
        await guard.admit(connection("websocket", client=client), "agent")
    # One who has an IPv6 address has all of its network.
    with pytest.raises(RateLimitedError, match="connections from this address"):
        await guard.admit(connection("websocket", client="2001:db8::3"), "agent")
    assert await guard.admit(connection("http", client="2001:db8::3"), "agent")
    assert await guard.admit(connection("websocket", client="2001:db8:0:1::1"), "agent")


async def test_a_forwarded_address_is_believed_of_proxies_only(connection):
    settings = SecuritySettings(trusted_proxies=("10.0.0.0/8",))
    guard = Guard(settings, rates=RateSettings(ip_requests="1/minute"))

    async def comes(client, forwarded):
        await guard.admit(connection(client=client, x_forwarded_for=forwarded), "agent")

    await comes("192.0.2.1", "198.51.100.1")
    with pytest.raises(RateLimitedError):
        await comes("192.0.2.1", "198.51.100.2")  # invented: it is the same client
    await comes("10.0.0.1", "198.51.100.3")
    with pytest.raises(RateLimitedError):
        await comes("10.0.0.1", "203.0.113.77, 198.51.100.3")  # so is what stands before the client


# --- an API's own proof -------------------------------------------------------------------------


async def test_a_signature_takes_the_place_of_a_key(guard, connection):
    caller = Principal(id="twilio", scopes=frozenset({"agent"}), kind="signature")
    assert await guard.admit(connection(), "agent", signature=lambda: caller) == replace(
        caller, address="192.0.2.7"
    )
    with pytest.raises(ForbiddenError):
        await guard.admit(connection(), "admin", signature=lambda: caller)


async def test_wrong_signatures_count_as_guesses(keys_file, connection):
    guard = Guard(
        SecuritySettings(keys_file=str(keys_file.path)), rates=RateSettings(auth_failures="1/minute")
    )

    def wrong():
        raise UnauthorizedError("the signature is wrong")

    with pytest.raises(UnauthorizedError):
        await guard.admit(connection(), "agent", signature=wrong)
    with pytest.raises(RateLimitedError):
        await guard.admit(connection(), "agent", signature=wrong)


# --- the audit log ------------------------------------------------------------------------------


async def test_every_decision_is_written_down_without_secrets(guard, keys_file, connection, audited):
    owner = await guard.admit(connection(path="/v1/x", **bearer(keys_file.key)), "agent", session_id="s-1")
    token = guard.grant(owner, session_id="s-1").token
    with pytest.raises(UnauthorizedError):
        await guard.admit(connection(**bearer("parley_guess_secret")), "agent")
    admitted, issued, refused = audited()
    assert admitted["event"] == "admitted"
    assert (admitted["who"], admitted["session"], admitted["path"]) == (keys_file.id, "s-1", "/v1/x")
    assert (issued["event"], issued["who"]) == ("token_issued", keys_file.id)
    assert (refused["event"], refused["who"], refused["code"]) == ("refused", None, "unauthorized")
    assert refused["address"] == "192.0.2.7"
    written = json.dumps(audited())
    for secret in (keys_file.key, token, "secret"):
        assert secret not in written


async def test_refusal_is_audited_with_the_known_identity(guard, keys_file, connection, audited):
    with pytest.raises(ForbiddenError):
        await guard.admit(connection(**bearer(keys_file.key)), "admin")
    (refused,) = audited()
    assert (refused["who"], refused["code"]) == (keys_file.id, "forbidden")


async def test_anonymous_requests_are_limited_by_address(connection):
    guard = Guard(rates=RateSettings(key_requests="1/minute", ip_requests="2/minute"))
    for _ in range(2):
        await guard.admit(connection(), "agent")
    with pytest.raises(RateLimitedError, match="this address"):
        await guard.admit(connection(), "agent")
    assert await guard.admit(connection(client="192.0.2.8"), "agent")

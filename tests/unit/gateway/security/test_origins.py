"""Which pages may connect."""

import pytest

from parley_gateway.errors import ForbiddenError, GatewaySettingsError
from parley_gateway.security.guard import Guard
from parley_gateway.security.origins import Origins
from parley_gateway.security.settings import SecuritySettings


def is_allowed(origins, connection, origin, host="gateway.example"):
    try:
        origins.check(connection("websocket", origin=origin, host=host))
    except ForbiddenError:
        return False
    return True


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("https://gateway.example", "gateway.example", True),
        ("http://gateway.example:8080", "gateway.example:8080", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://GATEWAY.example", "gateway.example", True),
        ("https://gateway.example", "gateway.example:443", True),
        ("https://evil.example", "gateway.example", False),
        ("https://gateway.example.evil.example", "gateway.example", False),
        ("https://gateway.example@evil.example", "gateway.example", False),
        ("http://gateway.example:8081", "gateway.example:8080", False),
        ("null", "gateway.example", False),
        ("", "gateway.example", False),
        ("file://", "gateway.example", False),
        ("https://gateway.example:99999", "gateway.example", False),
        ("https://[", "gateway.example", False),
        ("https://gateway.example", "[", False),
    ],
)
def test_the_gateways_own_page_may_connect_and_others_not(connection, origin, host, allowed):
    assert is_allowed(Origins(), connection, origin, host) is allowed


def test_programs_that_are_no_browsers_have_no_origin(connection):
    Origins().check(connection("websocket"))


def test_listed_origins_may_connect(connection):
    origins = Origins(["https://app.example", "http://localhost:5173"])
    assert is_allowed(origins, connection, "https://app.example")
    assert is_allowed(origins, connection, "http://localhost:5173")
    assert not is_allowed(origins, connection, "http://app.example")
    assert not is_allowed(origins, connection, "https://app.example:444")


def test_the_public_address_is_the_gateways_own(connection):
    origins = Origins(public_url="https://voice.example/")
    assert is_allowed(origins, connection, "https://voice.example", host="10.0.0.5:8080")


def test_a_star_lets_all_pages_in_but_only_with_keys(connection):
    assert is_allowed(Origins(["*"]), connection, "https://any.example")
    with pytest.raises(GatewaySettingsError, match="only where keys"):
        Origins(["*"], anonymous=True)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("rebound.example:8080", False),
    ],
)
def test_host_name_without_authentication_has_to_be_allowed(connection, host, allowed):
    assert is_allowed(Origins(anonymous=True), connection, f"http://{host}", host) is allowed
    assert is_allowed(Origins(hosts=["rebound.example"], anonymous=True), connection, f"http://{host}", host)


@pytest.mark.parametrize(
    "text", ["app.example", "ftp://app.example", "https://app.example/path", "https://["]
)
def test_invalid_origin_is_refused_at_the_start(text):
    with pytest.raises(GatewaySettingsError, match="not an origin"):
        Origins([text])


async def test_the_guard_asks(connection):
    guard = Guard(SecuritySettings(origins=("https://app.example",)))
    assert await guard.admit(connection("websocket", origin="https://app.example"), "agent")
    with pytest.raises(ForbiddenError, match="origin"):
        await guard.admit(connection("websocket", origin="https://evil.example"), "agent")

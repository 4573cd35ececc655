"""Where credentials may be."""

import pytest

from parley_gateway.errors import UnauthorizedError
from parley_gateway.security.principal import (
    MAX_CREDENTIAL_CHARS,
    accepted_subprotocol,
    find_credential,
)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k1"},
        {"authorization": "bearer  k1 "},
        {"authorization": "Token k1"},
        {"x_api_key": "k1"},
        {"xi_api_key": "k1"},
        {"api_key": "k1"},
        {"sec_websocket_protocol": "token, k1"},
        {"sec_websocket_protocol": ["bearer", "k1"]},
        {"sec_websocket_protocol": "parley.v1,bearer,k1"},
        {"sec_websocket_protocol": "realtime, openai-insecure-api-key.k1, openai-beta.realtime-v1"},
        {"authorization": "Bearer k1", "x_api_key": "k1"},
    ],
)
def test_every_protocol_has_its_place(connection, headers):
    assert find_credential(connection("websocket", **headers)) == "k1"


@pytest.mark.parametrize("headers", [{}, {"sec_websocket_protocol": "realtime"}, {"x_api_key": " "}])
def test_request_without_credentials_has_none(connection, headers):
    assert find_credential(connection("websocket", **headers)) is None


@pytest.mark.parametrize("name", ["api_key", "API_KEY", "token", "access_token", "key", "xi-api-key"])
def test_a_key_in_the_url_is_refused_and_not_repeated(connection, name):
    with pytest.raises(UnauthorizedError, match="do not belong in URLs") as caught:
        find_credential(connection(query=f"model=x&{name}=s3cret", authorization="Bearer k1"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["Basic dTpw", "k1", "Bearer", "Bearer "])
def test_other_schemes_are_refused(connection, value):
    with pytest.raises(UnauthorizedError, match="Authorization has to be"):
        find_credential(connection(authorization=value))


def test_two_different_credentials_are_refused(connection):
    with pytest.raises(UnauthorizedError, match="several credentials"):
        find_credential(connection(authorization="Bearer k1", x_api_key="k2"))


def test_overlong_credentials_are_refused(connection):
    with pytest.raises(UnauthorizedError, match="at most"):
        find_credential(connection(authorization="Bearer " + "x" * (MAX_CREDENTIAL_CHARS + 1)))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("token, k1", "token"),
        ("realtime, openai-insecure-api-key.k1", "realtime"),
        ("openai-insecure-api-key.k1, realtime", "realtime"),
        ("unknown, k1", None),
    ],
)
def test_the_subprotocol_that_is_chosen_is_never_the_credential(connection, offered, chosen):
    assert accepted_subprotocol(connection("websocket", sec_websocket_protocol=offered)) == chosen

"""Nobody serves strangers by accident."""

import logging

import pytest

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.serving import check_exposure

EVERYWHERE = "0.0.0.0"  # noqa: S104


def check(host, *, authenticated=False, encrypted=True, insecure=False):
    check_exposure(host, authenticated=authenticated, encrypted=encrypted, insecure_allow_anonymous=insecure)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_nothing(host):
    check(host, encrypted=False)


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.0.2.1", "", "gateway.example"])
def test_a_public_address_needs_authentication(host):
    with pytest.raises(GatewaySettingsError, match="without authentication is refused"):
        check(host)
    check(host, authenticated=True)


def test_who_really_wants_to_can(caplog):
    with caplog.at_level(logging.WARNING):
        check(EVERYWHERE, insecure=True)
    assert "need no credentials" in caplog.text


def test_to_do_without_encryption_is_mentioned(caplog):
    with caplog.at_level(logging.WARNING):
        check(EVERYWHERE, authenticated=True, encrypted=False)
    assert "not encrypted" in caplog.text

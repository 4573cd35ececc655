"""Public addresses need credentials."""

import logging

import pytest

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.settings import SecuritySettings
from parley_gateway.serving import check_exposure
from parley_gateway.settings import Settings
from parley_gateway.settings_sections import ListenSettings

EVERYWHERE = "0.0.0.0"  # noqa: S104


def check(host, *, authenticated=False, encrypted=True, insecure=False, proxies=(), public_url=""):
    settings = Settings(
        listen=ListenSettings(host=host, public_url=public_url, certificate="cert.pem" if encrypted else ""),
        security=SecuritySettings(insecure_allow_anonymous=insecure, trusted_proxies=proxies),
    )
    check_exposure(settings, authenticated=authenticated)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_nothing(host):
    check(host, encrypted=False)


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.0.2.1", "", "gateway.example"])
def test_a_public_address_needs_authentication(host):
    with pytest.raises(GatewaySettingsError, match="without authentication is refused"):
        check(host)
    check(host, authenticated=True)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"public_url": "https://voice.example.com"}, "listen.public_url"),
        ({"proxies": ("10.0.0.1",)}, "behind a proxy"),
    ],
)
def test_loopback_behind_a_proxy_needs_authentication(others, why, caplog):
    with pytest.raises(GatewaySettingsError, match=f"{why}.*without authentication is refused"):
        check("127.0.0.1", **others)
    check("127.0.0.1", authenticated=True, **others)
    assert not caplog.records
    check("127.0.0.1", insecure=True, **others)
    assert "need no credentials" in caplog.text


def test_public_url_of_this_machine_needs_nothing():
    check("127.0.0.1", public_url="http://localhost:8080")


def test_anonymous_access_can_be_allowed(caplog):
    with caplog.at_level(logging.WARNING):
        check(EVERYWHERE, insecure=True)
    assert "need no credentials" in caplog.text


def test_to_do_without_encryption_is_mentioned(caplog):
    with caplog.at_level(logging.WARNING):
        check(EVERYWHERE, authenticated=True, encrypted=False)
    assert "not encrypted" in caplog.text

"""Addresses of Redis in the settings: that of the rates and that of the sessions."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from parley_gateway.errors import GatewaySettingsError

_CHECK = "ssl_check_hostname"


def read_redis_address(setting: str, address: str) -> str:
    """The address as coredis gets it: with TLS, the certificate of Redis has to name its host.

    By itself coredis accepts every certificate of a known authority, whatever host it names. An address that
    has ``ssl_check_hostname`` stays as it is.

    Raises:
        GatewaySettingsError: it is no address of Redis. The message does not show it: it may hold a password.
    """
    if not address.startswith(("redis://", "rediss://")):
        raise GatewaySettingsError(f"{setting} has to be redis://… or rediss://…")
    try:
        parts = urlsplit(address)
    except ValueError:
        raise GatewaySettingsError(f"{setting} cannot be used (ValueError)") from None
    if parts.scheme != "rediss" or _CHECK in parse_qs(parts.query):
        return address
    return parts._replace(query="&".join(filter(None, (parts.query, f"{_CHECK}=true")))).geturl()

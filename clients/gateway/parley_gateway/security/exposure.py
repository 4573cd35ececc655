"""Refuses to serve strangers by accident."""

from __future__ import annotations

import logging

from parley_gateway.errors import SettingsError
from parley_gateway.security.addresses import is_loopback

_LOG = logging.getLogger(__name__)


def check_exposure(
    host: str, *, authenticated: bool, encrypted: bool, insecure_allow_anonymous: bool
) -> None:
    """Whether the gateway may listen on an address.

    Args:
        host: The address, as configured.
        authenticated: Keys or JWTs are asked for.
        encrypted: Connections use TLS, here or at a proxy in front.
        insecure_allow_anonymous: The operator wants to serve everybody.

    Raises:
        SettingsError: others than this machine would reach it without being asked who they are.
    """
    if is_loopback(host):
        return
    where = host or "all addresses"
    if not authenticated and not insecure_allow_anonymous:
        raise SettingsError(
            f"listening on {where} without authentication is refused: make a key with "
            "`parley gateway keys new >> FILE` and name the FILE as security.keys_file "
            "(PARLEY_GATEWAY_SECURITY_KEYS_FILE), or give jwt.issuer (docs/security.md); "
            "or say security.insecure_allow_anonymous if everybody may use it"
        )
    if not authenticated:
        _LOG.warning("everybody who reaches %s can use this gateway", where)
    if not encrypted:
        _LOG.warning("connections to %s are not encrypted: keys and speech can be read on the way", where)

"""``parley gateway health``: would the gateway of these settings take a call?"""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from parley_client.errors import UsageError

if TYPE_CHECKING:
    from parley_gateway.settings_sections import ListenSettings

_TIMEOUT_S = 4.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to listen there


def run(listen: ListenSettings) -> int:
    """Ask ``/readyz`` of the gateway on this machine; 0: it takes calls, 1: it does not, and says why.

    Raises:
        UsageError: the settings leave the port to the system.
    """
    port = listen.port if listen.health_port is None else listen.health_port
    if port == 0:
        raise UsageError("listen.health_port is 0, any free port: name one")
    host = _LOOPBACK.get(listen.host, listen.host)
    scheme = "https" if listen.certificate else "http"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=_context()):  # noqa: S310 - its scheme is ours
            return 0
    except urllib.error.HTTPError as error:
        print(error.read().decode(errors="replace"), file=sys.stderr)
    except OSError as error:
        reason = getattr(error, "reason", error)
        print(f"error: no gateway answers at {url} ({reason}); start one: parley gateway", file=sys.stderr)
    return 1


def _context() -> ssl.SSLContext:
    """The certificate is of the name that clients use, and this is the same machine."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

"""The embedded Triton server: start, supervision and stop."""

from parley.launcher.errors import LauncherError
from parley.launcher.measured_calls import keep_calls
from parley.launcher.models import bring_weights, list_profiles
from parley.launcher.options import DEFAULT_PROFILE, Endpoints, ServerOptions, leave_busy_ports
from parley.launcher.server import EmbeddedServer
from parley.launcher.tls import ServerTls

__all__ = [
    "DEFAULT_PROFILE",
    "EmbeddedServer",
    "Endpoints",
    "LauncherError",
    "ServerOptions",
    "ServerTls",
    "bring_weights",
    "keep_calls",
    "leave_busy_ports",
    "list_profiles",
]

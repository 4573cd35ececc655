"""The embedded Triton server: found, started, watched and stopped."""

from parley.launcher.errors import LauncherError
from parley.launcher.models import list_profiles
from parley.launcher.options import DEFAULT_PROFILE, Endpoints, ServerOptions
from parley.launcher.server import EmbeddedServer, check_settings
from parley.launcher.weights import bring_weights

__all__ = [
    "DEFAULT_PROFILE",
    "EmbeddedServer",
    "Endpoints",
    "LauncherError",
    "ServerOptions",
    "bring_weights",
    "check_settings",
    "list_profiles",
]

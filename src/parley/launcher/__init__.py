"""The embedded Triton server: found, started, watched and stopped."""

from parley.launcher.errors import LauncherError
from parley.launcher.options import Endpoints, ServerOptions
from parley.launcher.server import EmbeddedServer

__all__ = ["EmbeddedServer", "Endpoints", "LauncherError", "ServerOptions"]

"""The Triton servers behind the gateway: which there are, and which of them takes the next call."""

from parley_gateway.servers.pool import Servers
from parley_gateway.servers.server import Lease, TritonServer
from parley_gateway.servers.settings import ServerSettings

__all__ = ["Lease", "ServerSettings", "Servers", "TritonServer"]

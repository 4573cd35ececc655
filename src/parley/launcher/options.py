"""What a caller may choose about the embedded server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import parley

ROOT = Path(parley.__file__).resolve().parents[2]
"""The checkout: ``scripts/serve`` and the tests work on it."""
GPU_PROFILE = "gpu"
"""The profile whose configurations are each model's ``config.pbtxt``."""
TINY_PROFILE = "tiny"
"""The profile whose weights are part of the project: tests and measurements run on it."""
OPEN_PROFILE = "open"
"""Real models for a CPU, downloaded once."""
DEFAULT_PROFILE = OPEN_PROFILE
"""Of the commands that people start: ``scripts/serve``, ``make serve``."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """One embedded server."""

    model_repository: Path = ROOT / "model_repository"
    profile: str = TINY_PROFILE
    """:data:`GPU_PROFILE`, or the name of a custom configuration in the models' ``configs/``."""
    load_models: tuple[str, ...] = ()
    """Load these only; empty: all that the profile has."""
    state_dir: Path = ROOT / ".server" / "default"
    """Log, backend links and lock. Two servers never share it."""
    cache_dir: Path = ROOT / ".cache"
    """What may be kept between starts (vLLM's model registry)."""
    grpc_port: int = 8001
    """0: any free port; so for the next two."""
    http_port: int = 8000
    metrics_port: int = 8002
    grpc_address: str = "127.0.0.1"
    http_address: str = "127.0.0.1"
    """Also the address of the metrics."""
    ready_timeout_s: float = 300.0
    """Seconds from start to the canary's answer."""
    exit_timeout_s: int = 20
    """Seconds that models get to end their sessions before the server is killed."""
    shm_region_bytes: int = 1 << 20
    """Initial shared memory of one model instance (bytes); it grows by 1 MiB when needed."""
    log_verbose: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to, and stronger than, the inherited environment."""
    extra_flags: tuple[str, ...] = ()
    """Passed on to ``tritonserver`` unchanged."""


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Where a started server listens."""

    grpc: str
    http: str
    metrics: str
    """Each ``host:port``."""

    def line(self) -> str:
        """One line for programs that started the server and wait for its ports."""
        return f"ready grpc={self.grpc} http={self.http} metrics={self.metrics}"

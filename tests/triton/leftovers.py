"""Settings of servers of a test's own, and what a stopped one must not leave behind."""

from __future__ import annotations

from parley.launcher.cleanup import SHARED_MEMORY
from parley.launcher.processes import session_members

AGENT_MODELS = (
    "parakeet_encoder",
    "parakeet_decoder",
    "parakeet_transcribe",
    "nemotron_streaming",
    "smart_turn",
    "qwen3",
    "espeak",
    "voice_agent",
)
"""Those that a conversation with a streaming recogniser needs."""
ANY_PORTS = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}


def shared_memory_bytes(prefix):
    """Present size of a server's shared memory regions."""
    return sum(path.stat().st_size for path in SHARED_MEMORY.glob(f"{prefix}*"))


def leftovers(session, prefix):
    """Processes and shared memory of a server that are still there."""
    processes = [process.cmdline() for process in session_members(session)]
    return processes, [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")]

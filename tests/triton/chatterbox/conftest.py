"""One server with all of Chatterbox, with small random weights, for all tests of this folder."""

from __future__ import annotations

import pytest
from leftovers import ANY_PORTS, leftovers

from chatterbox.chatterbox_weights import write_weights
from parley.launcher import EmbeddedServer, ServerOptions
from parley.triton.grpc_client import LoopbackClient

# As much as so many utterances need and no more: what one leaves behind, another one lacks.
LIMITS = {
    "PARLEY_CHATTERBOX_MAX_UTTERANCES": "16",
    "PARLEY_CHATTERBOX_IDLE_S": "4",
    # A text that is normalised too late is spoken as it is written, with other tokens.
    "PARLEY_CHATTERBOX_NORMALIZE_S": "60",
    "PARLEY_T3_MAX_REQUESTS": "32",
    "PARLEY_S3GEN_MAX_UTTERANCES": "16",
    "PARLEY_S3GEN_IDLE_S": "8",
    "PARLEY_S3GEN_MAX_STEP": "1",  # chunk by chunk, so that there are seams
}
AGENT = {
    "PARLEY_VOICE_AGENT_TTS": "chatterbox",
    "PARLEY_VOICE_AGENT_TTS_FALLBACK": "espeak",
    # Two cores are shared by all models.
    "PARLEY_VOICE_AGENT_TTS_FIRST_AUDIO_S": "20",
    "PARLEY_VOICE_AGENT_TTS_DEADLINE_S": "60",
}
DAMAGED = f"damaged.{'0' * 64}.safetensors"


@pytest.fixture(scope="package")
def weights(tmp_path_factory):
    """The environment of a server that uses the small weights."""
    environment = write_weights(tmp_path_factory.mktemp("chatterbox") / "weights")
    return environment | {"PARLEY_WEIGHTS_VOICE_ENROLLMENT": environment["PARLEY_WEIGHTS_CHATTERBOX"]}


@pytest.fixture(scope="package")
def voices_folder(tmp_path_factory):
    """Where enrolled voices are stored. One of them is damaged."""
    folder = tmp_path_factory.mktemp("voices")
    (folder / DAMAGED).write_bytes(b"not what was stored")
    return folder


@pytest.fixture(scope="package")
def chatterbox_server(tmp_path_factory, weights, voices_folder):
    """The whole tiny profile, with Chatterbox as the agent's voice."""
    options = ServerOptions(
        state_dir=tmp_path_factory.mktemp("chatterbox-state"),
        environment=LIMITS | AGENT | weights | {"PARLEY_VOICES": str(voices_folder)},
        **ANY_PORTS,
    )
    running = EmbeddedServer(options)
    with running:
        session = running.pid
        yield running
    assert leftovers(session, running.shm_prefix) == ([], [])


@pytest.fixture
async def port(chatterbox_server):
    """A client for streams, as models have it."""
    port = LoopbackClient(chatterbox_server.endpoints.grpc, max_streams=200)
    yield port
    await port.close()

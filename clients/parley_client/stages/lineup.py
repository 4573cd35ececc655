"""Which synthesizers a client means, and which of them a server has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.engines.chatterbox import ChatterboxSpeaker
from parley.engines.espeak import MODEL as ESPEAK
from parley.engines.espeak import EspeakSpeaker
from parley.engines.kokoro import KokoroSpeaker
from parley.engines.piper import PiperSpeaker
from parley.errors import InvalidInputError
from parley_client.channel import error_of, is_model_ready
from parley_client.stages.server import StageServer

AUTO = "auto"
"""In place of names: the synthesizers of the server's conversations."""
_AGENT = "voice_agent"
_TIMEOUT_S = 5.0

SPEAKERS: dict[str, type[EspeakSpeaker | PiperSpeaker | KokoroSpeaker | ChatterboxSpeaker]] = {
    "espeak": EspeakSpeaker,
    "piper": PiperSpeaker,
    "kokoro": KokoroSpeaker,
    "chatterbox": ChatterboxSpeaker,
}


def read_names(models: str) -> tuple[str, ...]:
    """The synthesizers in ``models``; none for :data:`AUTO`.

    Args:
        models: a name, several with commas in order of preference, or ``auto``.

    Raises:
        InvalidInputError: there is no such synthesizer, or it is named twice.
    """
    if models == AUTO:
        return ()
    names = tuple(name.strip() for name in models.split(","))
    for name in names:
        if name not in SPEAKERS:
            raise InvalidInputError(f"no synthesizer {name!r}; there are {', '.join(SPEAKERS)}")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"a synthesizer is named twice: {models}")
    return names


async def find_names(server: StageServer, names: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Those of the synthesizers that the server has loaded; all of them if it has none.

    Args:
        server: the server.
        names: in order of preference; one alone is not looked for. None: those of its conversations.

    Returns:
        The names, and whether the others will not come: one may be loading.

    Raises:
        ParleyError: the server cannot be asked.
    """
    names = tuple(names) or await _names_of_agent(server.channel)
    if len(names) == 1:
        return names, True
    ready = await asyncio.gather(*(is_model_ready(server.channel, name, _TIMEOUT_S) for name in names))
    loaded = tuple(name for name, is_ready in zip(names, ready, strict=True) if is_ready)
    return loaded or names, all(ready)


async def _names_of_agent(channel: grpc.aio.Channel) -> tuple[str, ...]:
    """As ``voice_agent`` is configured; a variable of its server's environment is not seen from here.

    Raises:
        ParleyError: the server cannot be asked, or is loading the agent.
    """
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    request = service_pb2.ModelConfigRequest(name=_AGENT)
    try:
        reply = await stub.ModelConfig(request, timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise error_of(error) from error
        return (ESPEAK,)  # a server of stages alone
    configured = reply.config.parameters["tts"].string_value.split(",")
    return tuple(name.strip() for name in configured if name.strip() in SPEAKERS) or (ESPEAK,)

"""A segment's audio, by S3Gen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, SessionNotFoundError
from parley.tts.chatterbox.limits import ChatterboxLimits
from parley.tts.chatterbox.models import AudioModel
from parley.tts.chatterbox.token_queue import TokenQueue, Tokens
from parley.tts.s3gen.client import VoiceTensors
from parley.tts.s3gen.messages import OpenUtterance, PushTokens
from parley.waiting import each_within, try_within, within

_RETRY_S = 0.005
_FADE_S = 0.005


async def render(
    model: AudioModel,
    message: OpenUtterance,
    voice: VoiceTensors,
    tokens: TokenQueue,
    *,
    limits: ChatterboxLimits,
    hear: Callable[[NDArray[np.int16]], None],
) -> None:
    """Make audio of ``tokens`` while they come; the model is told to stop if this ends early.

    Args:
        model: makes it.
        message: opens the model's utterance; whether it is final is found out here.
        voice: who speaks.
        tokens: nobody else takes from it.
        limits: how long to wait.
        hear: is given every piece of the audio.

    Raises:
        ParleyError: the model failed or was late.
        ExceptionGroup: of such errors.
    """
    first, complete = await tokens.take()
    if complete and not len(first):
        return
    message = msgspec.structs.replace(message, final=complete)
    done = False
    try:
        async with asyncio.TaskGroup() as group:
            if not complete:
                name = f"{message.utterance_id} tokens"
                group.create_task(_feed(model, message.utterance_id, tokens, len(first), limits), name=name)
            await _listen(model, message, voice, first, limits=limits, hear=hear)
        done = True
    finally:
        if not done:
            name = message.utterance_id
            await try_within(model.stop(name), limits.stop_s, f"stopping the audio of {name}")


async def _listen(
    model: AudioModel,
    message: OpenUtterance,
    voice: VoiceTensors,
    first: Tokens,
    *,
    limits: ChatterboxLimits,
    hear: Callable[[NDArray[np.int16]], None],
) -> None:
    ended = False
    stream = each_within(model.utter(message, voice, first), limits.audio_s, "s3gen")
    async with aclosing(stream):
        async for chunk, audio in stream:
            ended = chunk.final
            hear(fade_out(audio, chunk.sample_rate) if ended else audio)
    if not ended:
        raise InferenceError(f"s3gen ended {message.utterance_id} before its last audio")


async def _feed(
    model: AudioModel, utterance_id: str, tokens: TokenQueue, sent: int, limits: ChatterboxLimits
) -> None:
    complete = False
    while not complete:
        more, complete = await tokens.take()
        push = PushTokens(utterance_id=utterance_id, first=sent, final=complete)
        await within(_push(model, push, more), limits.push_s, "s3gen")
        sent += len(more)


async def _push(model: AudioModel, message: PushTokens, tokens: Tokens) -> None:
    while True:
        try:
            return await model.push(message, tokens)
        except SessionNotFoundError:
            # It may have overtaken the request that opens the utterance. If that one failed, whoever
            # listens to it ends this.
            await asyncio.sleep(_RETRY_S)


def fade_out(audio: NDArray[np.int16], rate: int) -> NDArray[np.int16]:
    """The last piece of a segment with a soft end: the next segment begins with silence."""
    count = min(len(audio), round(_FADE_S * rate))
    gain = np.ones(len(audio), np.float32)
    gain[len(audio) - count :] = np.linspace(1.0, 0.0, count, dtype=np.float32)
    faded: NDArray[np.int16] = np.round(audio * gain).astype(np.int16)
    return faded

"""Requests to a language model and to a voice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from parley_client.audio.files import speech_span
from stages.protocols import Delta, EndpointError, LanguageModel, Prompt, Sound, Usage, Voice
from stages.turns import Patience, Turn


async def answer(endpoint: LanguageModel, prompt: Prompt, patience: Patience) -> Turn:
    """Ask a language model, and read its answer to the end.

    Tokens are counted by the endpoint. One that does not count them is taken to send one with each piece.
    """
    began = time.perf_counter()
    came: list[float] = []
    text, tokens = "", 0
    try:
        async with asyncio.timeout(patience.turn_s), aclosing(endpoint(prompt)) as events:
            async for event in events:
                match event:
                    case Delta():
                        came.append(time.perf_counter())
                        text += event.text
                    case Usage():
                        tokens = event.tokens
    except TimeoutError:
        return Turn(failure="timeout", text=text)
    except EndpointError as error:
        return Turn(failure=str(error), text=text)
    if not came:
        return Turn(failure="no text")
    figures = {"first_token_ms": 1000 * (came[0] - began)}
    further = (tokens or len(came)) - 1
    if further > 0 and came[-1] > came[0]:
        figures["tokens_per_s"] = further / (came[-1] - came[0])
    return Turn(figures, text=text)


async def speak(endpoint: Voice, text: str, patience: Patience) -> Turn:
    """Let a voice speak a text, and take its audio to the end."""
    began = time.perf_counter()
    came: list[Arrival] = []
    try:
        async with asyncio.timeout(patience.turn_s), aclosing(endpoint(text)) as sounds:
            came += [Arrival(time.perf_counter(), sound) async for sound in sounds if len(sound.samples)]
    except TimeoutError:
        return Turn(failure="timeout")
    except EndpointError as error:
        return Turn(failure=str(error))
    ended = time.perf_counter()
    audible_s = first_audible_s(came)
    if audible_s is None:
        return Turn(failure="silence" if came else "no audio")
    length_s = sum(len(one.sound.samples) / one.sound.rate for one in came)
    return Turn(
        {
            "first_audio_ms": 1000 * (came[0].at_s - began),
            "first_audible_ms": 1000 * (audible_s - began),
            "real_time_factor": (ended - began) / length_s,
        }
    )


@dataclass(frozen=True)
class Arrival:
    """A piece of speech, and when it came (seconds)."""

    at_s: float
    sound: Sound


def first_audible_s(came: Sequence[Arrival]) -> float | None:
    """When a player that begins with the first piece plays the first loud sample; None: there is none.

    Loud is what is above 1 % of the speech's peak. The player waits where a piece has not come yet.

    Args:
        came: the pieces of one speech, in order.
    """
    samples = np.concatenate([one.sound.samples for one in came]) if came else np.zeros(0, np.int16)
    if not samples.any():
        return None
    first, _ = speech_span(samples)
    plays_s = came[0].at_s
    for one in came:
        plays_s = max(plays_s, one.at_s)
        if first < len(one.sound.samples):
            return plays_s + first / one.sound.rate
        first -= len(one.sound.samples)
        plays_s += len(one.sound.samples) / one.sound.rate
    return None

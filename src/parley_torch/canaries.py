"""The canary of each model of this package; see :mod:`parley.canaries`."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import numpy as np

from parley.canaries.connection import CanaryConnection
from parley.canaries.models import CanaryError, ask_silently, read_reply, require
from parley.errors import NotPermittedError
from parley.inference import ModelRequest, struct_tensor
from parley.protocol import CANARY_PREFIX
from parley.tts.voice_messages import ListVoices, VoicesReply
from parley_torch.tts.s3gen.messages import AudioChunk, OpenUtterance
from parley_torch.tts.t3.messages import (
    SpeechSampling,
    SpeechTokensEvent,
    SpeechTokensRequest,
    TokensCompleted,
)

_SPEECH_CODES = 6561


def ask_t3(server: CanaryConnection) -> None:
    """One speech token."""
    name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    message = SpeechTokensRequest(
        request_id=name, text="Hi.", max_tokens=1, sampling=SpeechSampling(temperature=0.0)
    )
    request = ModelRequest(
        "t3",
        {"REQUEST": struct_tensor(message), "SPEAKER_EMBEDDING": np.full(256, 1 / 16, np.float32)},
        ("EVENT", "TOKENS"),
        request_id=name,
    )
    last: Any = None
    for outputs in server.stream([request]):
        last = read_reply(outputs, "EVENT", SpeechTokensEvent)
        tokens = outputs["TOKENS"]
        require(bool(((tokens >= 0) & (tokens < _SPEECH_CODES)).all()), f"speech tokens {tokens.tolist()}")
    if not isinstance(last, TokensCompleted):
        raise CanaryError(f"the tokens ended with {last}")
    require(last.finish_reason in ("stop", "length"), f"the tokens were ended by {last.finish_reason}")
    require(last.generated_tokens > 0, "no speech token was drawn")


def ask_s3gen(server: CanaryConnection) -> None:
    """Eighty milliseconds of audio, with a voice of as many."""
    name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    tokens = np.array([1, 2], np.int32)
    request = ModelRequest(
        "s3gen",
        {
            "REQUEST": struct_tensor(OpenUtterance(utterance_id=name, final=True)),
            "TOKENS": tokens,
            "SPEAKER": np.full(192, 1 / 16, np.float32),
            "PROMPT_TOKENS": tokens,
            "PROMPT_MEL": np.zeros((2 * tokens.size, 80), np.float32),
        },
        ("CHUNK", "AUDIO"),
        request_id=name,
    )
    samples, last = 0, None
    for outputs in server.stream([request]):
        last = read_reply(outputs, "CHUNK", AudioChunk)
        require(last.offset == samples, "audio is missing")
        samples += outputs["AUDIO"].size
    if last is None or not last.final:
        raise CanaryError(f"the audio ended with {last}")
    require(samples > 0, "the tokens have no audio")


def ask_voice_enrollment(server: CanaryConnection) -> None:
    """The list of voices; a refusal for want of permission is an answer too."""
    request = ModelRequest("voice_enrollment", {"REQUEST": struct_tensor(ListVoices())}, ("REPLY",))
    try:
        read_reply(server.infer(request), "REPLY", VoicesReply)
    except NotPermittedError:
        return


ask_chatterbox = partial(ask_silently, "chatterbox")

"""What ``parakeet_tdt`` does with the requests of one execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from parley.asr.checkpoint import Checkpoint
from parley.asr.frontend import LogMel
from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.asr.rail import AcousticModels, Chunk, Heard, step
from parley.asr.sessions import SessionTable
from parley.asr.stream import AsrStream, StreamLimits
from parley.errors import (
    InvalidAudioError,
    InvalidMessageError,
    ParleyError,
    UnsupportedLanguageError,
)
from parley.inference import Tensor

_decoder = msgspec.json.Decoder(AsrRequest)


@dataclass(frozen=True)
class StreamRequest:
    """One request as Triton hands it over."""

    key: str
    """Correlation id of the sequence."""
    start: bool
    end: bool
    audio: Tensor
    """i16 ``[n]`` or ``[1, n]``: 16 kHz mono."""
    message: bytes
    """JSON of :class:`parley.asr.messages.AsrRequest`."""


class RecognitionService:
    """Keeps the streams and serves all requests of an execution in one step.

    A request that cannot be served fails alone, and its stream stays as it was.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        models: AcousticModels,
        sessions: SessionTable,
        *,
        limits: StreamLimits,
        languages: Sequence[str],
        max_chunk_ms: int,
    ) -> None:
        """Serve ``checkpoint``.

        Args:
            checkpoint: whose vocabulary and front end apply.
            models: the networks.
            sessions: holds the streams.
            limits: of each stream.
            languages: what the checkpoint understands.
            max_chunk_ms: longest audio of one request.
        """
        self._checkpoint = checkpoint
        self._models = models
        self._sessions = sessions
        self._limits = limits
        self._languages = tuple(languages)
        self._max_chunk = max_chunk_ms * checkpoint.config.sample_rate // 1000
        self._mel = LogMel(checkpoint.config)

    def serve(self, requests: Sequence[StreamRequest]) -> list[AsrReply | ParleyError]:
        """Answer each request; at most one per stream."""
        self._sessions.sweep()
        admitted = [self._admit(request) for request in requests]
        heard = iter(step([chunk for chunk in admitted if isinstance(chunk, Chunk)], self._models))
        answers: list[AsrReply | ParleyError] = []
        for request, chunk in zip(requests, admitted, strict=True):
            result = chunk if isinstance(chunk, ParleyError) else next(heard)
            if isinstance(result, Heard):
                self._sessions.update(request.key, result.stream)
            answers.append(result.reply if isinstance(result, Heard) else result)
            if request.end:
                self._sessions.close(request.key)
        return answers

    def _admit(self, request: StreamRequest) -> Chunk | ParleyError:
        try:
            if request.start:
                self._sessions.close(request.key)
            message = _read_message(request.message)
            audio = self._read_audio(request.audio)
            if request.start:
                self._sessions.open(request.key, self._new_stream(message.options or AsrOptions()))
            return Chunk(self._sessions.get(request.key), audio, message.flush)
        except ParleyError as error:
            return error

    def _new_stream(self, options: AsrOptions) -> AsrStream:
        if options.language not in self._languages:
            known = ", ".join(self._languages)
            raise UnsupportedLanguageError(f"language {options.language!r} is not understood; only {known}")
        return AsrStream(self._checkpoint, self._mel, options, self._limits)

    def _read_audio(self, audio: Tensor) -> Tensor:
        samples = audio.reshape(-1)
        if samples.dtype != np.int16:
            raise InvalidAudioError(f"audio is {samples.dtype}; it must be int16")
        if len(samples) > self._max_chunk:
            raise InvalidAudioError(
                f"{len(samples)} samples in one piece; at most {self._max_chunk} are taken"
            )
        return samples


def _read_message(raw: bytes) -> AsrRequest:
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessageError(f"request cannot be read: {error}") from error

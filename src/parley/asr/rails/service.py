"""What an ASR rail's model does with the requests of one execution."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import msgspec
import numpy as np

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.asr.rails.segmentation import PER_MS
from parley.asr.rails.sessions import SessionTable
from parley.asr.rails.step import Chunk, Heard, Rail, StreamT
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


class RecognitionService(Generic[StreamT]):
    """Keeps the streams and serves all requests of an execution in one step.

    A request that cannot be served fails alone, and its stream stays as it was.
    """

    def __init__(
        self,
        rail: Rail[StreamT],
        sessions: SessionTable[StreamT],
        *,
        languages: Sequence[str],
        max_chunk_ms: int,
    ) -> None:
        """Serve the streams of a rail.

        Args:
            rail: recognises.
            sessions: holds the streams; nobody else uses it.
            languages: what the rail understands.
            max_chunk_ms: longest audio of one request.
        """
        self._rail = rail
        self._sessions = sessions
        self._languages = tuple(languages)
        self._max_chunk = max_chunk_ms * PER_MS
        self._lock = threading.Lock()

    def serve(self, requests: Sequence[StreamRequest]) -> list[AsrReply | ParleyError]:
        """Answer each request; at most one per stream."""
        with self._lock:
            self._sweep()
            admitted = [self._admit(request) for request in requests]
            heard = iter(self._rail.step([chunk for chunk in admitted if isinstance(chunk, Chunk)]))
            answers: list[AsrReply | ParleyError] = []
            for request, chunk in zip(requests, admitted, strict=True):
                result = chunk if isinstance(chunk, ParleyError) else next(heard)
                if isinstance(result, Heard):
                    self._sessions.update(request.key, result.stream)
                answers.append(result.reply if isinstance(result, Heard) else result)
                if request.end:
                    self._close(request.key)
            return answers

    def sweep(self) -> int:
        """Drop the streams that are idle, and return how many; may be called from any thread."""
        with self._lock:
            return self._sweep()

    def _sweep(self) -> int:
        idle = self._sessions.sweep()
        for stream in idle:
            self._rail.release(stream)
        return len(idle)

    def _close(self, key: str) -> None:
        stream = self._sessions.close(key)
        if stream is not None:
            self._rail.release(stream)

    def _admit(self, request: StreamRequest) -> Chunk[StreamT] | ParleyError:
        try:
            if request.start:
                self._close(request.key)
            message = _read_message(request.message)
            audio = self._read_audio(request.audio)
            if request.start:
                self._sessions.open(request.key, self._new_stream(message.options or AsrOptions()))
            return Chunk(
                self._sessions.get(request.key),
                audio,
                flush=message.flush,
                turn_over=message.turn_over,
                last=request.end,
            )
        except ParleyError as error:
            return error

    def _new_stream(self, options: AsrOptions) -> StreamT:
        if options.language not in self._languages:
            known = ", ".join(self._languages)
            raise UnsupportedLanguageError(f"language {options.language!r} is not understood; only {known}")
        return self._rail.new_stream(options)

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

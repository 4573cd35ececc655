"""A recogniser without networks: loud audio is speech, and all speech is the same question."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from parley.asr.messages import (
    AsrEvent,
    AsrReply,
    OnsetEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.pipeline.step import ChunkResult
from parley.models.recognition import RecognitionModel
from parley.runtime.parameters import Parameters
from parley.triton.observability import log_to_triton

_PER_MS = 16
_LOUD = 1000
_QUESTION = "what time is it"


class _Stream:
    """The audio so far, and where the utterance under way began."""

    def __init__(self, silence_ms: int) -> None:
        self._silence = silence_ms * _PER_MS
        self._samples = 0
        self._loud_until = 0
        self._speaking = False
        self._utterance = 0

    @property
    def ms(self) -> int:
        return self._samples // _PER_MS

    def hear(self, audio: Any) -> list[AsrEvent]:
        began, self._samples = self.ms, self._samples + len(audio)
        if len(audio) and int(np.abs(audio).max()) >= _LOUD:
            self._loud_until = self._samples
            if not self._speaking:
                self._speaking = True
                self._utterance += 1
                started = SpeechStartedEvent(utterance=self._utterance, at_ms=began)
                return [OnsetEvent(at_ms=began), started]
        elif self._speaking and self._samples - self._loud_until >= self._silence:
            self._speaking = False
            ended = self._loud_until // _PER_MS
            return [
                SpeechStoppedEvent(utterance=self._utterance, at_ms=ended, detected_at_ms=self.ms),
                TranscriptEvent(utterance=self._utterance, text=_QUESTION, is_final=True, confidence=1.0),
            ]
        return []


class _Pipeline:
    """:class:`parley.asr.pipeline.step.RecognizerPipeline` of such streams."""

    def new_stream(self, options: Any) -> _Stream:
        return _Stream(options.vad.silence_ms or 160)

    def step(self, chunks: Any) -> list[ChunkResult[Any]]:
        results = []
        for chunk in chunks:
            stream = copy.copy(chunk.stream)
            events = stream.hear(chunk.audio)
            results.append(
                ChunkResult(stream, AsrReply(events=events, stream_ms=stream.ms, batch=len(chunks)))
            )
        return results

    def release(self, stream: _Stream) -> None:
        pass


class TritonPythonModel:
    """Holds all streams and serves those that have audio, together."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the table of streams."""
        log_to_triton(pb_utils, args["model_name"])
        self._model = RecognitionModel(pb_utils, Parameters.from_args(args), _Pipeline())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Stop the thread that drops idle streams."""
        self._model.close()

"""An ASR rail between Triton and :class:`parley.asr.pipeline.service.RecognitionService`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parley.asr.pipeline.service import RecognitionService, SessionTable, StreamRequest
from parley.asr.pipeline.step import RecognizerPipeline
from parley.inference import struct_tensor, tensor_bytes
from parley.runtime.parameters import Parameters
from parley.triton.periodic import Periodic
from parley.triton.responses import answer, read_tensors

MAX_CHUNK_MS = 10_000


def max_chunk_ms(parameters: Parameters) -> int:
    """The longest audio of one request (parameter ``max_chunk_ms``)."""
    return parameters.integer("max_chunk_ms", MAX_CHUNK_MS, minimum=1_000)


class RecognitionModel:
    """What the models of all rails do: keep streams, serve their requests, drop the idle ones."""

    def __init__(
        self, pb_utils: Any, args: Mapping[str, str], parameters: Parameters, rail: RecognizerPipeline[Any]
    ) -> None:
        """Serve ``rail``.

        Args:
            pb_utils: Triton's module.
            args: what Triton gives to ``initialize``.
            parameters: the model's settings; ``max_sessions``, ``languages`` and ``max_chunk_ms`` are
                read here, and the idle limit is that of the model's sequences.
            rail: recognises.

        Raises:
            ModelLoadingError: a setting has a value that it cannot have.
        """
        self._pb = pb_utils
        batching = json.loads(args["model_config"])["sequence_batching"]
        idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self._service = RecognitionService(
            rail,
            SessionTable(parameters.integer("max_sessions", 64, minimum=1), idle_s),
            languages=parameters.names("languages", "en"),
            max_chunk_ms=max_chunk_ms(parameters),
        )
        self._sweeper = Periodic(idle_s / 4, self._service.sweep)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        replies = self._service.serve([self._read(request) for request in requests])
        return [
            answer(self._pb, reply, lambda done: {"REPLY": struct_tensor(done, batched=True)})
            for reply in replies
        ]

    def close(self) -> None:
        """End what runs beside the executions."""
        self._sweeper.close()

    def _read(self, request: Any) -> StreamRequest:
        tensors = read_tensors(request.inputs())
        flags = request.flags()
        return StreamRequest(
            # To Triton, 5 and "5" are two sequences.
            key=repr(request.correlation_id()),
            start=bool(flags & self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            end=bool(flags & self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
            audio=tensors["AUDIO"],
            message=tensor_bytes(tensors["REQUEST"]),
        )

"""The recogniser as a Triton model; see :class:`parley.asr.service.RecognitionService`."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from parley.asr import checkpoint
from parley.asr.remote import RemoteModels
from parley.asr.service import RecognitionService, StreamRequest
from parley.asr.sessions import SessionTable
from parley.asr.stream import StreamLimits
from parley.inference import struct_tensor, tensor_bytes
from parley.serving.blocking import make_blocking_port
from parley.serving.execution import answer
from parley.serving.logs import log_to_triton
from parley.serving.parameters import Parameters
from parley.serving.periodic import Periodic
from parley.serving.tensors import read_tensors
from parley.serving.weights import resolve_weights


class TritonPythonModel:
    """Holds all streams and serves those that have audio, together."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings; the networks are other models, called when there is audio."""
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        export = checkpoint.load(resolve_weights(parameters, checkpoint.DEFAULT, checkpoint.FILES))
        batching = json.loads(args["model_config"])["sequence_batching"]
        idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        limits = StreamLimits()
        self._port = make_blocking_port(pb_utils, parameters)
        self._sessions = SessionTable(parameters.integer("max_sessions", 64, minimum=1), idle_s)
        # Below the agent's own deadline, which would otherwise come before the reason is known.
        timeout_s = parameters.number("timeout_s", 4.0, minimum=0.1)
        self._service = RecognitionService(
            export,
            RemoteModels(self._port, timeout_s=timeout_s),
            self._sessions,
            limits=StreamLimits(
                preroll_ms=parameters.integer("preroll_ms", limits.preroll_ms),
                window_ms=parameters.integer("window_ms", limits.window_ms, minimum=1_000),
                cut_search_ms=parameters.integer("cut_search_ms", limits.cut_search_ms),
                max_utterance_ms=parameters.integer(
                    "max_utterance_ms", limits.max_utterance_ms, minimum=1_000
                ),
            ),
            languages=parameters.text("languages", "en").split(","),
            max_chunk_ms=parameters.integer("max_chunk_ms", 10_000, minimum=1_000),
        )
        self._sweeper = Periodic(idle_s / 4, self._sessions.sweep)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        replies = self._service.serve([_read(request) for request in requests])
        return [
            answer(pb_utils, reply, lambda done: {"REPLY": struct_tensor(done, batched=True)})
            for reply in replies
        ]

    def finalize(self) -> None:
        """End what runs beside the executions."""
        self._sweeper.close()
        self._port.close()


def _read(request: Any) -> StreamRequest:
    tensors = read_tensors(request.inputs())
    flags = request.flags()
    return StreamRequest(
        key=str(request.correlation_id()),
        start=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        end=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        audio=tensors["AUDIO"],
        message=tensor_bytes(tensors["REQUEST"]),
    )

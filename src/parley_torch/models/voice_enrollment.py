"""Triton's requests to ``voice_enrollment``, and its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch

from parley.engines.weight_files import find_weights
from parley.errors import ModelLoadingError
from parley.inference import Tensor, decode_request, struct_tensor
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters
from parley.triton.model_metrics import ModelMetrics
from parley.triton.request_loop import RequestLoop
from parley.triton.responses import Responder
from parley.tts.voice_messages import ListVoices, Variant, VoicesRequest
from parley.vad.silero import FILE, bundled_folder
from parley_torch.tts.t3.checkpoint import find_checkpoint, read_shape
from parley_torch.tts.voices.enrollment import checkpoint
from parley_torch.tts.voices.enrollment.recordings import EnrollmentLimits, silero
from parley_torch.tts.voices.enrollment.service import PROMPT_S, EnrollmentService, Policy, VoiceMaker
from parley_torch.tts.voices.store import open_store
from parley_torch.weight_files import enrollment_files

_requests: msgspec.json.Decoder[VoicesRequest] = msgspec.json.Decoder(VoicesRequest)
_OPERATIONS = tuple(str(kind.__struct_config__.tag) for kind in get_args(VoicesRequest))
_START_S = 60.0
_NO_AUDIO = b""


class EnrollmentModel:
    """What ``model.py`` of ``voice_enrollment`` runs.

    Parameters of the model, beside those of :func:`parley_torch.tts.voices.store.open_store`:
        ``weights``: folder of a Chatterbox checkpoint; its folder ``voices`` holds those built in.
        ``variant``: the T3 that voices are for: ``original``, ``multilingual`` or ``turbo``; without
            it, that of the weights.
        ``prompt_s``: seconds of the reference that S3Gen is given; see
            :class:`parley_torch.tts.voices.enrollment.service.VoiceMaker`.
        ``permit``: operations, of ``enroll,list,describe,delete``.
        ``require_consent``: ``true`` or ``false``.
        ``min_speech_s``, ``max_audio_s``, ``max_bytes``, ``min_level_db``, ``max_clipped``,
            ``min_snr_db``: see :class:`parley_torch.tts.voices.enrollment.recordings.EnrollmentLimits`.
        ``max_waiting``: requests at once.
        ``timeout_s``: of one request.
        ``threads``: of the networks.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        torch.set_num_threads(parameters.integer("threads", 1, minimum=1))
        weights = find_weights(parameters, "chatterbox", enrollment_files)
        maker = open_maker(parameters, weights)
        detect = silero(open_session(bundled_folder() / FILE))
        store, policy = open_store(parameters, weights), _policy(parameters)
        self._executor = ThreadPoolExecutor(1, "enrollment")
        self._loop = RequestLoop(pb_utils, self._answer, ModelMetrics(pb_utils, parameters))

        async def open_service() -> EnrollmentService:
            return EnrollmentService(maker, detect, store, policy, self._executor)

        self._service = self._loop.run(open_service(), _START_S)

    def execute(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        self._loop.submit(requests)

    def close(self) -> None:
        """End every request; what is being computed is finished and forgotten."""
        self._loop.close()
        self._executor.shutdown(cancel_futures=True)

    async def _answer(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        audio = inputs["AUDIO"].tobytes() if "AUDIO" in inputs else _NO_AUDIO
        # With audio something else was meant.
        message = decode_request(inputs["REQUEST"], _requests, None if audio else ListVoices())
        reply = await self._service.answer(message, audio)
        responder.answer({"REPLY": struct_tensor(reply)})


def open_maker(parameters: Parameters, weights: Path) -> VoiceMaker:
    """What makes voices with ``weights``, by the parameters ``variant`` and ``prompt_s``.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """
    return VoiceMaker(
        checkpoint.load(weights),
        _variant(parameters, weights),
        prompt_s=parameters.number("prompt_s", PROMPT_S, minimum=1.0),
    )


def _variant(parameters: Parameters, weights: Any) -> Variant:
    chosen = parameters.choice("variant", "", get_args(Variant))
    return chosen or read_shape(find_checkpoint(weights)).variant  # type: ignore[return-value]


def _policy(parameters: Parameters) -> Policy:
    permitted = frozenset(parameters.names("permit", "enroll,list,describe"))
    if unknown := permitted - set(_OPERATIONS):
        raise ModelLoadingError(
            f"permit of model {parameters.model} has {', '.join(sorted(unknown))}; "
            f"possible are {', '.join(_OPERATIONS)}"
        )
    return Policy(
        permitted=permitted,
        require_consent=parameters.boolean("require_consent", default=True),
        max_waiting=parameters.integer("max_waiting", 8, minimum=1),
        timeout_s=parameters.number("timeout_s", 60.0, minimum=0.1),
        limits=read_limits(parameters),
    )


def read_limits(parameters: Parameters) -> EnrollmentLimits:
    """What recordings have to be.

    Raises:
        ModelLoadingError: a setting is not usable.
    """
    default = EnrollmentLimits()
    return EnrollmentLimits(
        min_speech_s=parameters.number("min_speech_s", default.min_speech_s, minimum=1.0),
        max_s=parameters.number("max_audio_s", default.max_s, minimum=1.0),
        max_bytes=parameters.integer("max_bytes", default.max_bytes, minimum=1_000),
        min_level_db=parameters.number("min_level_db", default.min_level_db, minimum=-100.0),
        max_clipped=parameters.number("max_clipped", default.max_clipped),
        min_snr_db=parameters.number("min_snr_db", default.min_snr_db),
    )

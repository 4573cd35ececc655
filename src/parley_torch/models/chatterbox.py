"""The model ``chatterbox``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.engines.weight_files import find_weights
from parley.inference import ModelClient, Tensor, struct_tensor, with_id
from parley.metrics import Family
from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir
from parley.timeouts import log_failure
from parley.triton.model_client import make_model_client
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces, below
from parley.triton.request_loop import RequestLoop, StructHandler, wait_for_stop
from parley.triton.responses import Responder
from parley.tts.messages import AbortSpeech, MoreText, SpeechChunk, SpeechRequest
from parley.tts.normalization.nemo import load_grammars
from parley.tts.normalization.normalizer import SpokenText, TextNormalizer, join_parts, parts_of
from parley_torch.tts.chatterbox.limits import ChatterboxLimits
from parley_torch.tts.chatterbox.service import ChatterboxService
from parley_torch.tts.chatterbox.utterance import ChatterboxParts
from parley_torch.tts.s3gen.client import AudioModel
from parley_torch.tts.t3.checkpoint import find_checkpoint, read_shape
from parley_torch.tts.t3.client import SpeechTokenModel
from parley_torch.tts.voices.store import open_cache
from parley_torch.weight_files import chatterbox_files

_log = logging.getLogger("parley.torch")
_START_S = 900.0  # grammars may have to be compiled
NOT_NORMALIZED = Family(
    "parley_texts_not_normalized_total",
    "counter",
    "Texts that a model spoke as they are written because writing them out took too long",
    ("model",),
)


class ThreadNormalizer:
    """Runs a normaliser in one thread, for a limited time; texts take turns part by part.

    Args:
        normalizer: used by that thread alone.
        limit_s: seconds after which the text is spoken as it is written; other texts' turns in the thread
            count.
        on_late: called for each such text.
    """

    def __init__(self, normalizer: TextNormalizer, *, limit_s: float, on_late: Callable[[], None]) -> None:
        self._normalizer = normalizer
        self._limit_s = limit_s
        self._on_late = on_late
        self._thread = ThreadPoolExecutor(1, "normalization")

    async def normalize(self, text: str, language: str) -> SpokenText:
        """The text to say; never fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limit_s):
                parts = [
                    (
                        part,
                        await loop.run_in_executor(self._thread, self._normalizer.normalize, part, language),
                    )
                    for part in parts_of(text)
                ]
                return join_parts(parts)
        except TimeoutError:
            self._on_late()
            _log.warning(
                "a text of %d characters is spoken as it is written: normalising took over %g s",
                len(text),
                self._limit_s,
            )
            return self._normalizer.unchanged(text)

    def close(self) -> None:
        """Free the thread, when it has done what it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class ChatterboxModel:
    """What ``model.py`` of ``chatterbox`` runs.

    Parameters of the model, besides those of :func:`parley.triton.model_client.make_model_client`,
    :func:`parley_torch.tts.voices.store.open_cache` and
    :meth:`parley_torch.tts.chatterbox.limits.ChatterboxLimits.from_parameters`:
        ``weights``: folder of the checkpoint that ``t3`` and ``s3gen`` serve; its built-in voices are
            used, and whether it supports tags such as ``[laugh]`` is read from it.
        ``checkpoint``: its T3 file, if it has more than one.
        ``tokens_model``, ``audio_model``: names of the two models.
        ``default_voice``: of requests that name none.
        ``sample_rate``: of requests that name none (Hz).
        ``normalize``: languages whose text is normalised before it is spoken, such as ``en,de``.

    Raises:
        ModelLoadingError: a setting is not usable, or the weights are missing.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        self._pb = pb_utils
        self._model = parameters.model
        self._served = False
        self._client: ModelClient
        self._service: ChatterboxService
        self._normalizer: ThreadNormalizer
        self._handle: ChatterboxHandler
        self._watch: asyncio.Task[None]
        self._traces = ModelTraces.open(parameters)
        metrics = ModelMetrics(pb_utils, parameters, (NOT_NORMALIZED,))
        metrics.recorder.count(NOT_NORMALIZED, 0, model=self._model)
        self._on_late = partial(metrics.recorder.count, NOT_NORMALIZED, model=self._model)
        self._loop = RequestLoop(pb_utils, self._answer, metrics)
        self._loop.run(self._open(parameters), _START_S)

    def execute(self, requests: list[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        self._served = True
        self._loop.submit(requests)

    def close(self) -> None:
        """End every utterance and free what they used."""
        self._loop.close(self._release)
        self._traces.close()

    async def _answer(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        await self._handle(responder, inputs)

    async def _open(self, parameters: Parameters) -> None:
        weights = find_weights(parameters, "chatterbox", chatterbox_files)
        variant = read_shape(find_checkpoint(weights, parameters.text("checkpoint", ""))).variant
        limits = ChatterboxLimits.from_parameters(parameters)
        grammars = load_grammars(parameters.names("normalize", "en"), cache_dir() / "normalization")
        self._normalizer = ThreadNormalizer(
            TextNormalizer(grammars, tags=variant == "turbo"),
            limit_s=limits.normalize_s,
            on_late=self._on_late,
        )
        self._client = make_model_client(self._pb, parameters)
        parts = ChatterboxParts(
            SpeechTokenModel(
                self._client, model=parameters.text("tokens_model", "t3"), timeout_s=2 * limits.tokens_s
            ),
            AudioModel(self._client, parameters.text("audio_model", "s3gen")),
            open_cache(parameters, weights),
            self._normalizer,
        )
        self._service = ChatterboxService(
            parts,
            limits,
            default_voice=parameters.text("default_voice", "default"),
            sample_rate=parameters.integer("sample_rate", 24_000, minimum=8_000, maximum=48_000),
        )
        await self._service.check_default_voice()
        self._handle = ChatterboxHandler(self._service, self._traces)
        self._watch = asyncio.create_task(self._follow_server(), name="watch for the server's stop")
        self._watch.add_done_callback(log_failure)

    async def _follow_server(self) -> None:
        # A model that speaks is not unloaded: utterances must end by themselves when the server stops.
        await wait_for_stop(self._pb, self._model, lambda: self._served)
        await self._service.close()

    async def _release(self) -> None:
        self._watch.cancel()
        await self._service.close()
        self._normalizer.close()
        await self._client.close()


class ChatterboxHandler(StructHandler[SpeechRequest]):
    """Answers the requests of ``chatterbox``: tensors ``CHUNK`` and ``AUDIO`` out."""

    def __init__(self, service: ChatterboxService, traces: ModelTraces) -> None:
        super().__init__(msgspec.json.Decoder(SpeechRequest))
        self._service = service
        self._traces = traces

    async def answer(
        self, responder: Responder, message: SpeechRequest, inputs: Mapping[str, Tensor]
    ) -> None:
        """See :class:`parley.triton.request_loop.StructHandler`."""
        del inputs
        if isinstance(message, AbortSpeech):
            await self._service.stop(message.request_id)
        elif isinstance(message, MoreText):
            self._service.push(message)
        else:

            def send(chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
                return responder.send({"CHUNK": struct_tensor(chunk), "AUDIO": audio})

            characters = {"parley.characters": len(message.text)}
            span = self._traces.follow(responder, "speak", message.traceparent, characters)
            await self._service.speak(below(span, with_id(message)), send)

"""Pipecat services that run Parley's models in Pipecat's own process.

They are what an application without a server would be made of. The language model and the synthesizer are
the services of ``pipecat-parley`` with the model's call in this process instead of gRPC: the very same code
before and after it. vLLM's engine and espeak-ng exist once per process and serve all sessions. The
recogniser follows Pipecat's convention for local models (``SegmentedSTTService``): each session loads its
own, and hears a whole utterance, in a thread, once Pipecat's voice activity detection has found its end. It
sends no interim texts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
from local_models import Transcriber
from numpy.typing import NDArray
from pipecat.frames.frames import Frame, TranscriptionFrame
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.transcriptions.language import Language
from pipecat.utils.time import time_now_iso8601
from pipecat_parley import ParleyLLMService, ParleyTTSService

from parley.asr.decoding.words import text_of
from parley.engines.speech import EspeakSpeaker
from parley.errors import ParleyError
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service
from parley.runtime.parameters import Parameters
from parley.tts.espeak import EspeakSynthesizer
from parley.tts.espeak_library import EspeakLibrary
from parley.tts.messages import SpeakRequest, SpeechChunk
from parley_stages import Generation, ServerConnection, Synthesis

ROOT = Path(__file__).resolve().parents[2]
_MODELS = ROOT / "models"
_NO_SERVER = ServerConnection(None)  # type: ignore[arg-type] - nothing here connects


class LocalSTTService(SegmentedSTTService):
    """The recogniser ``parakeet_tdt`` on whole utterances."""

    def __init__(self) -> None:
        super().__init__(
            settings=STTSettings(model="parakeet_tdt", language=Language.EN), ttfs_p99_latency=0.5
        )
        self._transcriber = Transcriber(_MODELS / "tiny-parakeet-tdt")

    @property
    def wants_wav_segments(self) -> bool:
        """The model reads samples."""
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Write down an utterance."""
        words = await asyncio.to_thread(self._transcriber.words, np.frombuffer(audio, np.int16))
        if text := text_of(words):
            yield TranscriptionFrame(text, "", time_now_iso8601(), Language.EN)


class LocalLLMService(ParleyLLMService):
    """The language model in this process."""

    def __init__(self, chat: ChatService, *, system_instruction: str) -> None:
        super().__init__(settings=self.Settings(system_instruction=system_instruction))
        self._local = _LocalGeneration(chat)

    async def _model(self) -> Generation:
        return self._local


class LocalTTSService(ParleyTTSService):
    """The synthesizer in this process."""

    def __init__(self, synthesizer: EspeakSynthesizer) -> None:
        super().__init__()
        self._local = _LocalSynthesis(synthesizer)

    async def _model(self) -> Synthesis:
        return self._local


class _LocalGeneration(Generation):
    def __init__(self, chat: ChatService) -> None:
        super().__init__(_NO_SERVER)
        self._model = chat  # type: ignore[assignment] - it has the methods that are used


class _LocalSynthesis(Synthesis):
    def __init__(self, synthesizer: EspeakSynthesizer) -> None:
        super().__init__(_NO_SERVER)
        self._lineup = [(EspeakSpeaker.model, _LocalSpeaker(synthesizer))]
        self._recheck_at_s = math.inf  # no server is asked what it has loaded


class _LocalSpeaker(EspeakSpeaker):
    """Speaks without a server."""

    def __init__(self, synthesizer: EspeakSynthesizer) -> None:
        super().__init__(None, timeout_s=0.0)  # type: ignore[arg-type] - nothing here asks a model
        self._synthesizer = synthesizer

    async def speak(
        self, request: SpeakRequest
    ) -> AsyncGenerator[tuple[SpeechChunk, NDArray[np.int16]], None]:
        sink = _Sink(asyncio.get_running_loop())
        self._synthesizer.submit(request, sink)
        while (item := await sink.items.get()) is not None:
            if isinstance(item, ParleyError):
                raise item
            yield item

    async def abort(self, request_id: str) -> None:
        self._synthesizer.abort(request_id)


class _Sink:
    """A :class:`parley.tts.requests.SpeechSink` that hands the audio to the event loop."""

    wanted = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.items: asyncio.Queue[tuple[SpeechChunk, NDArray[np.int16]] | ParleyError | None] = (
            asyncio.Queue()
        )

    def on_begun(self) -> None:
        """Pipecat has no use for it."""

    def send(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
        self._loop.call_soon_threadsafe(self.items.put_nowait, (chunk, audio))
        return True

    def finish(self) -> None:
        self._loop.call_soon_threadsafe(self.items.put_nowait, None)

    def fail(self, error: ParleyError) -> None:
        self._loop.call_soon_threadsafe(self.items.put_nowait, error)


def open_chat() -> ChatService:
    """The tiny language model in vLLM, as the tiny profile configures it."""
    values = {
        "engine": "inprocess",
        "engine_args": "model.tiny.json",
        "weights": str(_MODELS / "tiny-qwen3"),
        "chat_template_kwargs": '{"enable_thinking": false}',
        "threads": "1",
    }
    folder = ROOT / "model_repository" / "qwen3"
    chat, _ = load_chat_service(Parameters("qwen3", values, model_dir=folder), "tiny-qwen3")
    return chat


def open_synthesizer() -> EspeakSynthesizer:
    """espeak-ng, as the tiny profile configures it."""
    library = EspeakLibrary(60)
    library.set_rate(175)
    return EspeakSynthesizer(library)

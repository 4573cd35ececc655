"""A Pipecat pipeline with a recorded caller instead of a microphone and a listener instead of a loudspeaker."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
    TranscriptionFrame,
    TTSTextFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner
from recordings import RATE, Microphone, Notes

_NOTED = (
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
    TranscriptionFrame,
    TTSTextFrame,
)


class Caller(BaseInputTransport):
    """Speaks recordings."""

    def __init__(self, microphone):
        super().__init__(TransportParams(audio_in_enabled=True, audio_in_sample_rate=RATE))
        self._microphone = microphone
        self._speaking = None

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._speaking = self.create_task(self._speak())

    async def stop(self, frame):
        await self._fall_silent()
        await super().stop(frame)

    async def cancel(self, frame):
        await self._fall_silent()
        await super().cancel(frame)

    async def _fall_silent(self):
        if self._speaking:
            await self.cancel_task(self._speaking)
            self._speaking = None

    async def _speak(self):
        async for audio in self._microphone.frames():
            await self.push_audio_frame(InputAudioRawFrame(audio, RATE, 1))


class Listener(BaseOutputTransport):
    """Hears audio as fast as it is played."""

    def __init__(self, rate):
        super().__init__(
            TransportParams(audio_out_enabled=True, audio_out_sample_rate=rate, audio_out_auto_silence=False)
        )
        self.heard = bytearray()
        self._until = 0.0

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame):
        self.heard += frame.audio
        now = time.monotonic()
        self._until = max(self._until, now) + frame.num_frames / frame.sample_rate
        await asyncio.sleep(self._until - now)
        return True


class _Watcher(BaseObserver):
    """Notes frames where they are first pushed."""

    def __init__(self, notes):
        super().__init__()
        self._notes = notes
        self._seen = set()

    async def on_push_frame(self, data):
        if isinstance(data.frame, _NOTED) and data.frame.id not in self._seen:
            self._seen.add(data.frame.id)
            self._notes.add(data.frame)


class Call:
    """A running pipeline."""

    def __init__(self, worker, microphone, listener, context, notes):
        self.worker = worker
        self.microphone = microphone
        self.listener = listener
        self.context = context
        self.notes = notes
        self.errors = []

    async def ask(self, name):
        """Say a clip and hear the answer out; returns what the agent said."""
        since = len(self.notes.events)
        before = len(self.context.messages)
        self.microphone.say(name)
        await self.notes.wait(lambda event: isinstance(event, TranscriptionFrame), since=since)
        return await self.answer(before)

    async def answer(self, before):
        """What the agent says, when all of it was heard."""
        async with asyncio.timeout(30):
            while not self.said(before):
                await asyncio.sleep(0.05)
        return self.said(before)[-1]

    def said(self, since=0):
        """The agent's texts among the messages from number ``since`` on."""
        return [
            message["content"]
            for message in self.context.messages[since:]
            if message["role"] == "assistant" and message.get("content")
        ]


@asynccontextmanager
async def calling(stt, llm, tts, *, tools=None, rate=24_000):
    """A call to an agent of these services."""
    notes = Notes()
    microphone = Microphone()
    listener = Listener(rate)
    context = LLMContext(tools=tools) if tools else LLMContext()
    aggregators = LLMContextAggregatorPair(
        context,
        user_params=LLMUserAggregatorParams(
            vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2)),
            user_turn_strategies=UserTurnStrategies(
                stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.3)]
            ),
        ),
    )
    pipeline = Pipeline(
        [Caller(microphone), stt, aggregators.user(), llm, tts, listener, aggregators.assistant()]
    )
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(
            audio_in_sample_rate=RATE,
            audio_out_sample_rate=rate,
            enable_metrics=True,
            enable_usage_metrics=True,
        ),
        observers=[_Watcher(notes)],
        enable_rtvi=False,
        cancel_on_idle_timeout=False,
    )
    call = Call(worker, microphone, listener, context, notes)
    started = asyncio.Event()
    worker.event_handler("on_pipeline_started")(_setter(started))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(20):
            await started.wait()
        yield call
        await worker.queue_frame(EndFrame())
        async with asyncio.timeout(20):
            await asyncio.shield(running)
    finally:
        if not running.done():
            await worker.queue_frame(CancelFrame())
            await asyncio.wait([running], timeout=10)


def _setter(event):
    async def handler(*_):
        event.set()

    return handler

"""Pipecat pipelines with a recorded caller for a microphone and a listener for a loudspeaker."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import EndFrame, InputAudioRawFrame, OutputAudioRawFrame, TranscriptionFrame
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

OUT_RATE = 24_000


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

    def __init__(self):
        super().__init__(
            TransportParams(
                audio_out_enabled=True, audio_out_sample_rate=OUT_RATE, audio_out_auto_silence=False
            )
        )
        self.heard = bytearray()
        self.heard_at = []
        """When each piece began to be heard (seconds of the monotonic clock)."""
        self._until = 0.0

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame):
        self.heard += frame.audio
        now = time.monotonic()
        self.heard_at.append(max(self._until, now))
        self._until = max(self._until, now) + frame.num_frames / frame.sample_rate
        await asyncio.sleep(self._until - now)
        return True


class _Watcher(BaseObserver):
    """Notes every frame but the stream of audio, where it is first pushed."""

    def __init__(self, notes):
        super().__init__()
        self._notes = notes
        self._seen = set()

    async def on_push_frame(self, data):
        frame = data.frame
        if isinstance(frame, (InputAudioRawFrame, OutputAudioRawFrame)) or frame.id in self._seen:
            return
        self._seen.add(frame.id)
        self._notes.add(frame)


class Running:
    """A pipeline at work."""

    def __init__(self, worker, notes):
        self.worker = worker
        self.notes = notes

    def of(self, kind, since=0):
        """The frames of a kind, in the order in which they were first pushed."""
        return [frame for frame in self.notes.events[since:] if isinstance(frame, kind)]

    async def wait_for(self, kind, *, since=0, timeout_s=20.0, **fields):
        """The first frame of a kind that has these fields."""
        return await self.notes.wait(
            lambda frame: (
                isinstance(frame, kind)
                and all(getattr(frame, name) == value for name, value in fields.items())
            ),
            since=since,
            timeout_s=timeout_s,
        )

    def metrics(self, kind, service):
        """What a service has measured."""
        from pipecat.frames.frames import MetricsFrame

        return [
            data.value
            for frame in self.of(MetricsFrame)
            for data in frame.data
            if isinstance(data, kind) and data.processor == service.name and data.value
        ]


@asynccontextmanager
async def running(*processors):
    """A pipeline of these processors."""
    notes = Notes()
    worker = PipelineWorker(
        Pipeline(list(processors)),
        params=PipelineParams(
            audio_in_sample_rate=RATE,
            audio_out_sample_rate=OUT_RATE,
            enable_metrics=True,
            enable_usage_metrics=True,
        ),
        observers=[_Watcher(notes)],
        enable_rtvi=False,
        cancel_on_idle_timeout=False,
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _(*_):
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    work = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(20):
            await started.wait()
        yield Running(worker, notes)
        await worker.queue_frame(EndFrame())
        async with asyncio.timeout(20):
            await asyncio.shield(work)
    finally:
        if not work.done():
            await worker.cancel()
            await asyncio.wait([work], timeout=10)


class Call:
    """An agent's pipeline, and who calls it."""

    def __init__(self, pipeline, microphone, listener, context):
        self.pipeline = pipeline
        self.microphone = microphone
        self.listener = listener
        self.context = context

    async def ask(self, name):
        """Say a clip and hear the answer out; what was understood, and what the agent said."""
        since = len(self.pipeline.notes.events)
        before = len(self.context.messages)
        self.microphone.say(name)
        understood = await self.pipeline.wait_for(TranscriptionFrame, since=since)
        return understood.text, await self.answer(before)

    async def answer(self, before):
        """What the agent says after message number ``before``, when all of it was heard."""
        seen = len(self.pipeline.notes.events)
        while not (said := self.said(before)):
            # What was said is remembered shortly before or after the frame that tells of it.
            await self.pipeline.notes.next(seen)
            seen = len(self.pipeline.notes.events)
        return said[-1]

    def said(self, since=0):
        """The agent's texts among the messages from number ``since`` on."""
        return [
            message["content"]
            for message in self.context.messages[since:]
            if message["role"] == "assistant" and message.get("content")
        ]


@asynccontextmanager
async def calling(stt, llm, tts, tools=None, *, wait_s=0.3):
    """A call to an agent of these services, which waits ``wait_s`` for the caller to say more."""
    microphone = Microphone()
    listener = Listener()
    context = LLMContext(tools=tools) if tools else LLMContext()
    turns = UserTurnStrategies(stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=wait_s)])
    vad = SileroVADAnalyzer(params=VADParams(stop_secs=0.2))
    user, assistant = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=vad, user_turn_strategies=turns)
    )
    async with running(Caller(microphone), stt, user, llm, tts, listener, assistant) as pipeline:
        yield Call(pipeline, microphone, listener, context)

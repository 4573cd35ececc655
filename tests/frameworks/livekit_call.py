"""A LiveKit agent session without a room: a recorded caller speaks to it, a listener hears it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

from livekit import rtc
from livekit.agents import Agent, AgentSession, inference
from livekit.agents.voice import TranscriptSynchronizer, io
from recordings import RATE, Microphone, Notes

_SILERO = "silero"


class Ear(io.AudioInput):
    """Hears recordings."""

    def __init__(self, microphone):
        super().__init__(label="recordings")
        self._frames = microphone.frames()

    async def __anext__(self):
        audio = await anext(self._frames)
        return rtc.AudioFrame(audio, RATE, 1, len(audio) // 2)


class Loudspeaker(io.AudioOutput):
    """Plays audio at the pace of a clock, without a sound."""

    def __init__(self):
        super().__init__(label="silence", capabilities=io.AudioOutputCapabilities(pause=False))
        self.played_s = 0.0
        self._began = 0.0
        self._pushed_s = 0.0
        self._finishing = None

    async def capture_frame(self, frame):
        await super().capture_frame(frame)
        if not self._pushed_s:
            self._began = time.monotonic()
            self.on_playback_started(created_at=time.time())
        self._pushed_s += frame.duration

    def flush(self):
        super().flush()
        if self._pushed_s:
            self._finishing = asyncio.create_task(self._play_out())

    def clear_buffer(self):
        if self._finishing:
            self._finishing.cancel()
        if self._pushed_s:
            self._finish(min(self._pushed_s, time.monotonic() - self._began), interrupted=True)

    async def _play_out(self):
        await asyncio.sleep(max(0.0, self._began + self._pushed_s - time.monotonic()))
        self._finish(self._pushed_s, interrupted=False)

    def _finish(self, position_s, *, interrupted):
        self.played_s += position_s
        self._pushed_s = 0.0
        self._finishing = None
        self.on_playback_finished(playback_position=position_s, interrupted=interrupted)


class Transcript(io.TextOutput):
    """Collects what is shown as being said."""

    def __init__(self):
        super().__init__(label="transcript", next_in_chain=None)
        self._shown = Notes()

    async def capture_text(self, text):
        self._shown.add(text)

    async def until(self, text):
        """Return when this is being said."""
        await self._shown.wait(lambda piece: text in piece)

    def flush(self):
        pass


class Call:
    """A running session, and who calls it."""

    def __init__(self, session, microphone, loudspeaker, transcript, notes):
        self.session = session
        self.microphone = microphone
        self.loudspeaker = loudspeaker
        self.transcript = transcript
        self.notes = notes

    def of(self, kind, since=0):
        """The events of a type, in their order."""
        return [event for event in self.notes.events[since:] if event.type == kind]

    async def ask(self, name):
        """Say a clip and hear the answer out; what was understood, and what the agent said."""
        since = len(self.notes.events)
        self.microphone.say(name)
        user = await self.message("user", since)
        return user.text_content, (await self.message("assistant", since)).text_content

    async def message(self, role, since):
        """The next message of the user or the agent; the agent's, when it was heard."""
        event = await self.notes.wait(
            lambda event: (
                event.type == "conversation_item_added"
                and event.item.type == "message"
                and event.item.role == role
            ),
            since=since,
        )
        return event.item


@asynccontextmanager
async def calling(stt, llm, tts, *, instructions, tools=(), turn_detection="vad", vad=_SILERO):
    """A call to an agent of these models."""
    notes = Notes()
    microphone = Microphone()
    loudspeaker = Loudspeaker()
    session = AgentSession(
        stt=stt,
        llm=llm,
        tts=tts,
        vad=vad and inference.VAD(model=vad),
        turn_handling={
            "turn_detection": turn_detection,
            "endpointing": {"min_delay": 0.3, "max_delay": 1.0},
            "interruption": {"mode": "vad", "min_duration": 0.2, "resume_false_interruption": False},
        },
        use_tts_aligned_transcript=True,
        aec_warmup_duration=None,
        user_away_timeout=None,
    )
    for kind in (
        "conversation_item_added",
        "error",
        "function_tools_executed",
        "metrics_collected",
        "user_input_transcribed",
    ):
        session.on(kind, notes.add)
    session.input.audio = Ear(microphone)
    # As LiveKit does for a room: the transcript follows the audio.
    transcript = Transcript()
    synchronizer = TranscriptSynchronizer(next_in_chain_audio=loudspeaker, next_in_chain_text=transcript)
    session.output.audio = synchronizer.audio_output
    session.output.transcription = synchronizer.text_output
    await session.start(Agent(instructions=instructions, tools=list(tools)))
    try:
        yield Call(session, microphone, loudspeaker, transcript, notes)
    finally:
        await session.aclose()
        await synchronizer.aclose()
        for model in (stt, llm, tts):
            await model.aclose()

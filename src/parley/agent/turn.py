"""One turn of the agent: a source of text and the speech of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.continued import BegunResponse
from parley.agent.endpointer import UserTurn
from parley.agent.memory import UNREMEMBERED, ToolRound, remember
from parley.agent.playout import HeardSpeech, Playout
from parley.agent.response import FixedText, ResponseSource, TurnContext
from parley.agent.retrieval import Retrieved
from parley.agent.speech import SpeechOutput, SpeechSettings
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import AgentTurnState
from parley.engines.base import Synthesizer
from parley.errors import LlmFallbackError, ParleyError, TtsFallbackError
from parley.logs import log_ids
from parley.protocol import (
    Audio,
    ErrorEvent,
    KnowledgeSource,
    KnowledgeUsed,
    ResponseDone,
    ResponseText,
    ServerEvent,
    TurnMetrics,
)
from parley.timeouts import loop_time
from parley.tracing import NO_TRACE, Trace

TurnOutcome: TypeAlias = Literal["complete", "interrupted", "failed", "discarded", "closed", "abandoned"]
"""How a turn ended. ``discarded``: it was prepared, and the user went on. ``closed``: the session ended
during the turn; ``abandoned``: before its first audio."""


@dataclass(frozen=True)
class TurnRecord:
    """A turn that is over, for metrics."""

    figures: TurnMetrics
    outcome: TurnOutcome
    kind: Literal["answer", "say"]
    """``say``: a fixed text, such as a greeting."""
    spoken: bool
    """Whether it answers speech of the user, and not text."""


Emit = Callable[[ServerEvent, NDArray[np.int16] | None], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurnOutput:
    """What a turn needs to reach the client."""

    synthesizer: Synthesizer
    speaker: SpeechSettings
    config: AgentConfig
    emit: Emit
    aloud: bool = True
    """False: the text is sent and not spoken."""
    by_speech: bool = True
    """Whether speech interrupts it; typed text and the client always do."""
    recognizer: Callable[[], str] = lambda: ""
    """Name of the session's recogniser."""
    record: Callable[[TurnRecord], None] = lambda _: None
    changed: Callable[[], None] = lambda: None
    """Called when what a checkpoint contains of the turns has changed."""
    answered: Callable[[int], None] = lambda _: None
    """Called once with the number of a turn whose text is the language model's: it is complete, and the first
    audio was sent. The turn needs the language model no more."""


@dataclass(frozen=True)
class TurnTiming:
    """When the user's turn ended, and what was prepared for it."""

    user: UserTurn = field(default_factory=UserTurn)
    """Without times: the turn answers no speech."""
    speculations: int = 0
    """Answers that were prepared for this turn of the user."""
    speculated: bool = False
    """Whether this is one of them."""


class AgentTurn:
    """Runs a response source and speaks its text.

    A prepared turn generates text and audio, but sends nothing before :meth:`release`. :meth:`run` may be
    cancelled at any time, which stops the engines. After :meth:`stop` nothing more is sent.

    ``begun``: what another session has done of it, and the client has.
    ``number`` counts the session's turns from 1. ``name`` is unique for each turn, also for discarded ones of
    the same number, and the prefix of the ids of its requests to the engines.
    """

    def __init__(
        self,
        number: int,
        response_id: str,
        name: str,
        output: TurnOutput,
        source: ResponseSource,
        *,
        interruptible: bool = True,
        begun: BegunResponse | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.trace = trace
        """The turn's span; :meth:`record` ends it."""
        self.number = number
        self.response_id = response_id
        self.interruptible = interruptible
        self.failed = False
        """Whether an error was reported to the client."""
        self.generating = True
        """Whether its text may be written still."""
        self.read: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        """How likely a sentence ends with the user's words (0-1); None: the answer does not say it."""
        self.playout = Playout()
        if begun is not None:
            self.playout.restore_speech(
                begun.spoken, sent_ms=begun.audio_ms, played_ms=begun.played_ms, now=loop_time()
            )
        self._done_sent = begun is not None and begun.done
        self._name = name
        self._output = output
        self._source = source
        self._timing = TurnTiming()
        self._released = asyncio.Event()
        self._held_back: list[ServerEvent] = []
        self._stopped = False
        self._generation: asyncio.Task[None] | None = None
        self._is_answered = False
        self._voice = SpeechOutput(
            output.synthesizer,
            speaker=output.speaker,
            name=name,
            response_id=response_id,
            turn=number,
            playout=self.playout,
            emit=self._emit_audio,
            on_failure=self._on_speech_failed,
            on_fallback=self._on_fallback,
            config=output.config,
            trace=trace,
        )
        self._voice.hold()

    @property
    def acted(self) -> bool:
        """Whether a tool was run: the turn cannot simply be repeated."""
        return self._source.log.acted

    @property
    def state(self) -> AgentTurnState:
        """What another session needs to go on with the turn."""
        return self._source.state(self.number, self.response_id, interruptible=self.interruptible)

    def release(self, timing: TurnTiming) -> None:
        """Send what was held back, and everything that follows."""
        self._timing = timing
        user = timing.user
        if user.stopped_at is not None and user.heard_at is not None:
            model = {"parley.model": self._output.recognizer()}
            self.trace.child("asr", model, start_s=user.stopped_at).end(user.heard_at)
            if user.decided_at is not None:
                self.trace.child("endpointing", start_s=user.stopped_at).end(user.decided_at)
        self._released.set()
        events, self._held_back = self._held_back, []
        for event in events:
            self._emit(event)
        self._check_answered()
        self._voice.release()

    def pause(self, *, playback: bool) -> None:
        """Send nothing until :meth:`resume`; with ``playback`` the client pauses playback too."""
        self._voice.hold()
        if playback:
            self.playout.pause(loop_time())

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self.playout.resume(loop_time())
        self._voice.release()

    async def run(self) -> None:
        """Generate and speak; returns when the audio was played."""
        with self._log_ids():
            await self._run()

    def _log_ids(self) -> AbstractContextManager[None]:
        return log_ids(request=self._name, traceparent=self.trace.traceparent)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._generation = group.create_task(self._generate(), name=f"{self._name} generation")
                await self._voice.send_all()
        finally:
            # In any case, because a client waits for it; after stop() nothing is sent.
            self._report_done()
        await self._released.wait()
        self._check_answered(spoken=True)
        if self._voice.sent_at is not None or self.playout.length_ms:
            await self._voice.wait_until_played()

    def _report_done(self) -> None:
        if self._done_sent:
            return
        self._done_sent = True
        self._emit(
            ResponseDone(
                turn=self.number,
                response_id=self.response_id,
                audio_ms=round(self.playout.length_ms),
                finish_reason="length" if self._source.log.cut else "stop",
            )
        )

    def stop(self) -> HeardSpeech:
        """Send nothing more; returns what was played."""
        self._stopped = True
        self._on_read(None)
        return self._heard()

    def _heard(self) -> HeardSpeech:
        if self._output.aloud:
            return self.playout.heard(loop_time())
        # Text without speech counts as read at once.
        texts = enumerate(answer.text.strip() for answer in self.rounds)
        return HeardSpeech(0, tuple((index, text) for index, text in texts if text))

    @property
    def rounds(self) -> Sequence[ToolRound]:
        """The generated text and tool calls so far."""
        return self._source.log.rounds

    def remaining_ms(self) -> float | None:
        """Audio that was not played; None: not all audio is synthesised."""
        if not self._voice.complete:
            return None
        return self._voice.made_ms - self.playout.played_ms(loop_time())

    @property
    def asks(self) -> bool:
        """Whether the text so far ends with a question."""
        return bool(self.rounds) and self.rounds[-1].text.rstrip().endswith("?")

    @property
    def ending(self) -> ToolCall | None:
        """The call with which the language model ends the conversation behind this turn."""
        ending = None if self.failed else self._source.log.ending
        return None if ending is None else ending.call

    def cancel_ending(self) -> None:
        """The conversation goes on behind this turn."""
        if (ending := self._source.log.ending) is not None:
            ending.cancel()

    def memory(self, heard: HeardSpeech | None = None) -> list[ChatMessage]:
        """Messages for the history. ``heard``: what was played; None: all of it."""
        if heard is None and self.failed:
            heard = self._heard()
        self._source.log.complete_results()
        return remember(self.rounds, heard)

    def metrics(self, *, interrupted: bool) -> TurnMetrics:
        """Latencies and token counts."""
        times, voice, log = self._timing.user, self._voice, self._source.log
        return TurnMetrics(
            turn=self.number,
            asr_final_ms=_between(times.detected_at, times.heard_at),
            end_of_turn_ms=_between(times.heard_at, times.decided_at),
            llm_first_token_ms=_between(times.decided_at or times.heard_at, log.first_token_at),
            first_segment_ms=_between(times.decided_at or times.heard_at, voice.asked_at),
            llm_total_ms=_rounded(log.llm_ms),
            tool_ms=_rounded(log.tool_ms),
            tts_first_audio_ms=_between(voice.asked_at, voice.made_at),
            first_audio_ms=_between(times.detected_at, voice.sent_at),
            e2e_ms=_between(times.stopped_at, voice.sent_at),
            prompt_tokens=log.prompt_tokens,
            cached_tokens=log.cached_tokens,
            completion_tokens=log.completion_tokens,
            interrupted=interrupted,
            speculations=self._timing.speculations,
            speculated=self._timing.speculated,
            held_back=list(log.held_back),
            hedged=log.hedged,
            replacement=log.replacement,
        )

    def record(self, outcome: TurnOutcome) -> None:
        """The turn is over: end its span, and report its figures."""
        if outcome == "closed" and self._voice.sent_at is None:
            outcome = "abandoned"
        elif self.failed and outcome != "discarded":
            outcome = "failed"
        figures = self.metrics(interrupted=outcome == "interrupted")
        kind: Literal["answer", "say"] = "say" if isinstance(self._source, FixedText) else "answer"
        with self._log_ids():
            waited = "" if figures.e2e_ms is None else f", first audio {figures.e2e_ms:.0f} ms after speech"
            facts = {"turn": self.number, "outcome": outcome, "e2e_ms": figures.e2e_ms}
            _log.info("%s: turn %d %s%s", self._name, self.number, outcome, waited, extra=facts)
        self._output.record(TurnRecord(figures, outcome, kind, self._timing.user.stopped_at is not None))
        if self._voice.sent_at is not None:
            playback = self.trace.child("playback", start_s=self._voice.sent_at)
            playback.set({"parley.audio_ms": round(self.playout.length_ms)})
            playback.end()
        values = msgspec.structs.asdict(figures)
        self.trace.set({f"parley.{name}": value for name, value in values.items()})
        self.trace.set({"parley.outcome": outcome})
        self.trace.end(failure="turn_failed" if self.failed else "")

    # --- text -------------------------------------------------------------------------

    async def _generate(self) -> None:
        context = TurnContext(
            self.number,
            self._name,
            self._write,
            self._say,
            self._released,
            aloud=self._output.aloud,
            changed=self._output.changed,
            on_read=self._on_read,
            retrieved=self._on_retrieved,
            trace=self.trace,
        )
        try:
            await self._source.generate(context)
        except ParleyError as error:
            self._fail(error.at("llm"))
            await self._apologise()
        except Exception:  # noqa: BLE001 - logged and reported to the client
            _log.exception("%s: the turn failed", self.response_id)
            self._fail(ParleyError("the turn failed unexpectedly").at("llm"))
            await self._apologise()
        if self._source.log.replacement:
            self._emit(ErrorEvent.of(LlmFallbackError("another language model has answered")))
        self.generating = False
        self._on_read(None)
        self._check_answered()
        # After a failure, the text so far is still spoken.
        await self._voice.finish()

    async def _apologise(self) -> None:
        """Speak a fixed sentence after a failure; after a tool one that does not invite a repetition."""
        config = self._output.config
        apology = config.acted_apology if self.acted else config.apology
        if apology and self._released.is_set() and not self._source.log.answered:
            self._write(apology)
            await self._say(UNREMEMBERED, apology)

    async def _say(self, round_number: int, text: str) -> None:
        if self._output.aloud:
            await self._voice.say(round_number, text)

    # --- events ---------------------------------------------------------------

    def _on_read(self, probability: float | None) -> None:
        if not self.read.done():
            self.read.set_result(probability)

    def _write(self, text: str) -> None:
        self._emit(ResponseText(turn=self.number, response_id=self.response_id, text=text))

    def _on_retrieved(self, found: Retrieved) -> None:
        if not found.passages and not found.late:
            return
        sources = [
            KnowledgeSource(file=one.file, heading=one.heading, score=round(one.score, 3))
            for one in found.passages
        ]
        self._emit(
            KnowledgeUsed(turn=self.number, response_id=self.response_id, sources=sources, late=found.late)
        )

    def _fail(self, error: ParleyError) -> None:
        self.failed = True
        self._emit(ErrorEvent.of(error, tools_ran=self.acted))

    def _on_speech_failed(self, error: ParleyError) -> None:
        """Speech is impossible: stop generating text too."""
        self._fail(error.at("tts"))
        if self._generation is not None:
            self._generation.cancel()

    def _on_fallback(self) -> None:
        # Which one, and why, is for the log and the metrics: callers see this.
        self._emit(ErrorEvent.of(TtsFallbackError("another voice speaks the rest of the answer")))

    def _emit(self, event: ServerEvent) -> None:
        if self._stopped:
            return
        if self._released.is_set():
            self._output.emit(event, None)
        else:
            self._held_back.append(event)

    def _emit_audio(self, event: Audio, samples: NDArray[np.int16]) -> None:
        if not self._stopped:
            self._output.emit(event, samples)
            self._check_answered()

    def _check_answered(self, *, spoken: bool = False) -> None:
        """``spoken``: no more audio will come."""
        spoken = spoken or not self._output.aloud or self._voice.sent_at is not None
        if self.generating or not (self._released.is_set() and spoken) or self._is_answered:
            return
        self._is_answered = True
        if not (self._stopped or self.failed or isinstance(self._source, FixedText)):
            self._output.answered(self.number)


def _between(start: float | None, end: float | None) -> float | None:
    """Milliseconds between two times in seconds; at least 0."""
    return None if start is None or end is None else _rounded(max(0.0, end - start) * 1000)


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)

"""One turn of the agent: the words that it finds, and the voice that speaks them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.memory import UNREMEMBERED, ToolRound, remember
from parley.agent.playout import HeardSpeech, Playout
from parley.agent.response import ResponseSource, TurnContext
from parley.agent.speech import Speaker, SpeechOutput
from parley.engines.base import Synthesizer
from parley.errors import ParleyError, TtsFallbackError
from parley.llm.messages import ChatMessage
from parley.protocol import (
    Audio,
    ErrorEvent,
    ResponseDone,
    ResponseText,
    ServerEvent,
    TurnMetrics,
)
from parley.tts.messages import TtsFallback

Emit = Callable[[ServerEvent, NDArray[np.int16] | None], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurnOutput:
    """Where a turn is performed."""

    synthesizer: Synthesizer
    speaker: Speaker
    config: AgentConfig
    emit: Emit
    aloud: bool = True
    """False: what is found to say is written, and not spoken."""


@dataclass(frozen=True)
class TurnTiming:
    """Why it is the agent's turn. Seconds of the loop's clock."""

    heard_at: float | None = None
    """When the user's final text was there; None: the user did not speak."""
    detected_at: float | None = None
    """When the end of the user's speech was detected; None: unknown."""
    decided_at: float | None = None
    """When it was decided that the user's turn is over; None: at once."""
    speculations: int = 0
    """Answers that were prepared meanwhile."""
    speculated: bool = False
    """Whether this is one of them."""


class AgentTurn:
    """Says what its thinker finds.

    A turn may begin before it is given: it thinks and makes audio, but nothing reaches the client before
    :meth:`give`. :meth:`run` may be cancelled at any time; the engines are then told to stop. After
    :meth:`stop` nothing of this turn reaches the client any more.

    Args:
        number: counts the session's turns from 1.
        response_id: as the client knows it.
        name: that no other turn has; requests to the engines are named after it.
        stage: of the session.
        thinker: finds the words.
        interruptible: whether the user may speak over it.
    """

    def __init__(
        self,
        number: int,
        response_id: str,
        name: str,
        stage: TurnOutput,
        thinker: ResponseSource,
        *,
        interruptible: bool = True,
    ) -> None:
        self.number = number
        self.response_id = response_id
        self.interruptible = interruptible
        self.failed = False
        """Whether something went wrong that the user should know of."""
        self.playout = Playout()
        self._name = name
        self._output = stage
        self._thinker = thinker
        self._timing = TurnTiming()
        self._given = asyncio.Event()
        self._held_back: list[ServerEvent] = []
        self._stopped = False
        self._thinking: asyncio.Task[None] | None = None
        self._voice = SpeechOutput(
            stage.synthesizer,
            speaker=stage.speaker,
            name=name,
            response_id=response_id,
            turn=number,
            playout=self.playout,
            emit=self._emit_audio,
            on_failure=self._lose_voice,
            on_fallback=self._change_voice,
            config=stage.config,
        )
        self._voice.hold()

    @property
    def acted(self) -> bool:
        """Whether a tool has been run, so that the turn cannot simply be taken again."""
        return self._thinker.log.acted

    def give(self, occasion: TurnTiming) -> None:
        """It is certain that this is to be said."""
        self._timing = occasion
        self._given.set()
        events, self._held_back = self._held_back, []
        for event in events:
            self._emit(event)
        self._voice.release()

    def pause(self, *, playback: bool) -> None:
        """Send nothing for now.

        Args:
            playback: whether the client stops playing too, or plays what it has.
        """
        self._voice.hold()
        if playback:
            self.playout.pause(_now())

    def resume(self) -> None:
        """Go on where it was."""
        self.playout.resume(_now())
        self._voice.release()

    async def run(self) -> None:
        """Take the turn; returns when the user has heard it."""
        try:
            async with asyncio.TaskGroup() as group:
                self._thinking = group.create_task(self._think(), name=f"{self._name} thinking")
                await self._voice.send_all()
        finally:
            # However it ended: a client waits for it. A turn that was stopped says nothing more.
            audio_ms = round(self.playout.sent_ms)
            self._emit(
                ResponseDone(
                    turn=self.number,
                    response_id=self.response_id,
                    audio_ms=audio_ms,
                    finish_reason="length" if self._thinker.log.cut else "stop",
                )
            )
        await self._given.wait()
        if self._voice.sent_at is not None:
            await self._voice.wait_until_played()

    def stop(self) -> HeardSpeech:
        """Say nothing more; returns what was heard."""
        self._stopped = True
        return self._heard()

    def _heard(self) -> HeardSpeech:
        if self._output.aloud:
            return self.playout.heard(_now())
        # What is not spoken is read as soon as it is written.
        texts = enumerate(answer.text.strip() for answer in self.rounds)
        return HeardSpeech(0, tuple((index, text) for index, text in texts if text))

    @property
    def rounds(self) -> Sequence[ToolRound]:
        """What was found to say so far."""
        return self._thinker.log.rounds

    def remaining_ms(self) -> float | None:
        """Audio that the user has not heard; None: nobody knows yet."""
        if not self._voice.complete:
            return None
        return self._voice.made_ms - self.playout.played_ms(_now())

    @property
    def asks(self) -> bool:
        """Whether what was found to say so far ends with a question."""
        return bool(self.rounds) and self.rounds[-1].text.rstrip().endswith("?")

    def memory(self, heard: HeardSpeech | None = None) -> list[ChatMessage]:
        """What is to be remembered, if the user has heard ``heard``; None: what there was to hear."""
        if heard is None and self.failed:
            heard = self._heard()
        self._thinker.log.settle()
        return remember(self.rounds, heard)

    def metrics(self, *, interrupted: bool) -> TurnMetrics:
        """Where the time went."""
        times, voice, log = self._timing, self._voice, self._thinker.log
        return TurnMetrics(
            turn=self.number,
            asr_final_ms=_between(times.detected_at, times.heard_at),
            end_of_turn_ms=_between(times.heard_at, times.decided_at),
            llm_first_token_ms=_between(times.decided_at or times.heard_at, log.first_token_at),
            llm_total_ms=_rounded(log.llm_ms),
            tool_ms=_rounded(log.tool_ms),
            tts_first_audio_ms=_between(voice.asked_at, voice.made_at),
            first_audio_ms=_between(times.detected_at, voice.sent_at),
            prompt_tokens=log.prompt_tokens,
            cached_tokens=log.cached_tokens,
            completion_tokens=log.completion_tokens,
            interrupted=interrupted,
            speculations=times.speculations,
            speculated=times.speculated,
        )

    # --- thinking -------------------------------------------------------------------------

    async def _think(self) -> None:
        floor = TurnContext(
            self.number, self._name, self._write, self._say, self._given, aloud=self._output.aloud
        )
        try:
            await self._thinker.think(floor)
        except ParleyError as error:
            self._fail(error)
            await self._apologise()
        except Exception:  # noqa: BLE001 - logged and told to the client
            _log.exception("%s: the turn failed", self.response_id)
            self._fail(ParleyError("the turn failed unexpectedly"))
            await self._apologise()
        # After a failure, what was said so far is still spoken.
        await self._voice.finish()

    async def _apologise(self) -> None:
        """Silence would be the worst answer; what tools have done must not be asked for again."""
        config = self._output.config
        apology = config.acted_apology if self.acted else config.apology
        if apology and self._given.is_set() and not self._thinker.log.answered:
            self._write(apology)
            await self._say(UNREMEMBERED, apology)

    async def _say(self, round_number: int, text: str) -> None:
        if self._output.aloud:
            await self._voice.say(round_number, text)

    # --- telling the client ---------------------------------------------------------------

    def _write(self, text: str) -> None:
        self._emit(ResponseText(turn=self.number, response_id=self.response_id, text=text))

    def _fail(self, error: ParleyError) -> None:
        self.failed = True
        self._emit(ErrorEvent.of(error, tools_ran=self.acted))

    def _lose_voice(self, error: ParleyError) -> None:
        """Nothing more can be said: there is no use in thinking on."""
        self._fail(error)
        if self._thinking is not None:
            self._thinking.cancel()

    def _change_voice(self, fallback: TtsFallback) -> None:
        text = (
            f"{fallback.from_engine} ({fallback.reason}); {fallback.to_engine} speaks the rest of the answer"
        )
        self._emit(ErrorEvent.of(TtsFallbackError(text)))

    def _emit(self, event: ServerEvent) -> None:
        if self._stopped:
            return
        if self._given.is_set():
            self._output.emit(event, None)
        else:
            self._held_back.append(event)

    def _emit_audio(self, event: Audio, samples: NDArray[np.int16]) -> None:
        if not self._stopped:
            self._output.emit(event, samples)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _between(start: float | None, end: float | None) -> float | None:
    """Milliseconds from ``start`` to ``end``, which are seconds; nothing took less than no time."""
    return None if start is None or end is None else _rounded(max(0.0, end - start) * 1000)


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)

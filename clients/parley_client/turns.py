"""What happened in each turn of a played conversation, and how long it took."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from parley.protocol import Resumed, SpeechIgnored, ToolRequest, ToolRun, TurnMetrics


@dataclass(eq=False)
class TurnReport:
    """One turn, from the user's first word to the end of the answer.

    Times ending in ``_s`` are seconds on the clock of the microphone that spoke.
    """

    name: str
    said: str = ""
    """What the user is known to have said, typed or pressed; empty: not known."""
    heard: str = ""
    """The final transcript."""
    answer: str = ""
    """The agent's text; of an interrupted answer only what was spoken."""
    tools: list[ToolRequest | ToolRun] = field(default_factory=list)
    """Run by the client and by the server."""
    speech_began_s: float | None = None
    speech_ended_s: float | None = None
    """Of typed text and keys: both when they were sent."""
    detected_s: float | None = None
    """When the silence that ended the user's speech had lasted long enough (the server decides)."""
    transcribed_s: float | None = None
    """When the final transcript came."""
    answered_s: float | None = None
    """When the first sample of the answer was heard."""
    interrupted: bool = False
    """The user spoke over this answer."""
    barge_in: bool = False
    """This turn spoke over the answer before it."""
    silenced_s: float | None = None
    """When the answer that this turn spoke over fell silent: paused already, if it was."""
    resumed: Resumed | SpeechIgnored | None = None
    """The agent took this turn for no interruption and went on with its answer before."""
    goes_on: TurnReport | None = None
    """The turn whose answer that is; None: none is known."""
    cut_itself: bool = False
    """Something said in this very turn interrupted the answer to its beginning, and has its own answer."""
    audio_ms: int | None = None
    """Audio that was sent of the whole answer (milliseconds); None: it has no end yet, or was interrupted."""
    metrics: TurnMetrics | None = None
    """The server's own account."""
    failure: str = ""
    """What the server said had failed in this turn first."""
    problem: str = ""
    """Why the turn did not go as planned."""
    noticed: asyncio.Event = field(default_factory=asyncio.Event)
    """The server hears that somebody speaks."""
    transcribed: asyncio.Event = field(default_factory=asyncio.Event)
    """A final transcript has come."""
    speaking: asyncio.Event = field(default_factory=asyncio.Event)
    """The answer is being heard."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has done everything about this turn."""
    answered_again: asyncio.Event = field(default_factory=asyncio.Event)
    """After it cut itself: another answer has begun."""

    @property
    def voice_to_voice_ms(self) -> float | None:
        """True end of the user's speech to the answer's first sample."""
        return _span_ms(self.speech_ended_s, self.answered_s)

    @property
    def from_detection_ms(self) -> float | None:
        """Detection of the end of the user's speech to the answer's first sample."""
        return _span_ms(self.detected_s, self.answered_s)

    @property
    def detection_ms(self) -> float | None:
        """True end of the user's speech to its detection."""
        return _span_ms(self.speech_ended_s, self.detected_s)

    @property
    def barge_in_stop_ms(self) -> float | None:
        """First sample of the user's interruption to the agent's last."""
        return _span_ms(self.speech_began_s, self.silenced_s) if self.barge_in else None

    @property
    def stages(self) -> dict[str, float | None]:
        """Latencies of this turn by name (milliseconds)."""
        metrics = self.metrics or TurnMetrics(turn=0)
        return {
            "voice_to_voice": self.voice_to_voice_ms,
            "detection": self.detection_ms,
            "from_detection": self.from_detection_ms,
            "asr_final": metrics.asr_final_ms,
            "end_of_turn": metrics.end_of_turn_ms,
            "llm_first_token": metrics.llm_first_token_ms,
            "llm_total": metrics.llm_total_ms,
            "tool": metrics.tool_ms,
            "tts_first_audio": metrics.tts_first_audio_ms,
            "first_audio": metrics.first_audio_ms,
            "barge_in_stop": self.barge_in_stop_ms,
        }


def _span_ms(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else 1000 * (end - begin)


def percentile(values: list[float], share: float) -> float | None:
    """The value below which ``share`` (0-1) of ``values`` lie, nearest rank; None: no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1))]

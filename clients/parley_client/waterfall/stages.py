"""The stages of an answer, for ``parley trace`` and for the gateway's page.

The page has this table in ``talk/stages.js``, which ``build/page_stages.py`` writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.protocol import TurnMetrics


@dataclass(frozen=True, slots=True)
class Stage:
    """What an answer waits for."""

    title: str
    meaning: str


STAGES = {
    "silence": Stage("Silence noticed", "from the end of speech until the silence after it was noticed"),
    "asr_final": Stage("Final transcript", "from that notice until the final transcript"),
    "end_of_turn": Stage("Endpointing", "from the final transcript until the decision that the turn is over"),
    "llm_first_token": Stage("First token", "from that decision until the first token of the language model"),
    "first_audio": Stage("First audio", "from the same decision until the first audio was sent"),
    "llm_total": Stage("Language model", "its requests for the answer, until their last tokens"),
    "tool": Stage("Tools", "waiting for tools"),
    "tts_first_audio": Stage("Voice", "from the first segment of text until its first audio"),
    "delivery": Stage(
        "Network and sound", "from the first audio sent until it is heard: measured in the page only"
    ),
}
"""By name. All but the first and the last are fields of the event ``metrics``, without ``_ms``."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage of one answer (milliseconds)."""

    stage: str
    """A name in :data:`STAGES`."""
    ms: float
    start_ms: float | None
    """From the end of the user's speech; None: the figures do not say when the stage began."""


def stage_times(figures: TurnMetrics) -> list[StageTime]:
    """The stages that an answer went through, in the order of :data:`STAGES`."""
    audio_ms, e2e_ms = figures.first_audio_ms, figures.e2e_ms
    if audio_ms is None or e2e_ms is None:
        return _unplaced(figures)
    noticed = e2e_ms - audio_ms
    heard = noticed + (figures.asr_final_ms or 0.0)
    decided = heard + (figures.end_of_turn_ms or 0.0)
    times = [
        StageTime("silence", noticed, 0.0),
        StageTime("asr_final", figures.asr_final_ms or 0.0, noticed),
        StageTime("end_of_turn", figures.end_of_turn_ms or 0.0, heard),
    ]
    if figures.llm_first_token_ms is not None:
        times.append(StageTime("llm_first_token", figures.llm_first_token_ms, decided))
    # An answer that was begun early may have its first audio when it is decided to give it.
    times.append(StageTime("first_audio", max(0.0, e2e_ms - decided), min(decided, e2e_ms)))
    return times + [time for time in _unplaced(figures) if time.stage != "llm_first_token"]


def _unplaced(figures: TurnMetrics) -> list[StageTime]:
    named = {
        "llm_first_token": figures.llm_first_token_ms,
        "llm_total": figures.llm_total_ms,
        "tool": figures.tool_ms,
        "tts_first_audio": figures.tts_first_audio_ms,
    }
    return [StageTime(stage, ms, None) for stage, ms in named.items() if ms]

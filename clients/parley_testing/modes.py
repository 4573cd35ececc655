"""How a scenario is run: as text, or as speech under given conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from parley_testing.scenario import Criteria, Exchange, Scenario, StartCue


def as_text(scenario: Scenario) -> Scenario:
    """A scenario whose caller types what would be said, each line after the answer to the one before.

    What makes no sense in text is left out: sounds, silences, backchannels, and what is expected of hearing
    and interruptions.
    """
    typed = [_typed(one) for one in scenario.exchanges if one.is_turn and (one.words or one.content)]
    return replace(
        scenario,
        start=msgspec.structs.replace(scenario.start, output="text"),
        exchanges=tuple(typed),
        expect=msgspec.structs.replace(scenario.expect, interruptions=None),
    )


def needs_speech(scenario: Scenario) -> bool:
    """Whether as text there is nothing to type, or nothing left of what the scenario is for."""
    text = as_text(scenario)
    if scenario.exchanges and not text.exchanges and scenario.persona is None:
        return True
    return _has_criteria(scenario) and not _has_criteria(text)


def _has_criteria(scenario: Scenario) -> bool:
    """Whether it expects more than answers."""
    return scenario.expect != Criteria() or any(
        one.heard
        or one.tools
        or one.answer
        or one.never
        or one.interrupts
        or one.kind in ("backchannel", "sound")
        or (one.is_turn and one.answered is False)
        for one in scenario.exchanges
    )


def _typed(exchange: Exchange) -> Exchange:
    content = exchange.content or (exchange.sentence.text if exchange.sentence else exchange.words)
    return replace(
        exchange,
        kind="dtmf" if exchange.kind == "dtmf" else "text",
        cue=StartCue("idle", 0),
        sentence=None,
        file=None,
        content=content,
        words=content.lower(),
        heard=(),
        interrupts=False,
    )


def as_speech(scenario: Scenario, voices: Sequence[str], changes: Mapping[str, Any], number: int) -> Scenario:
    """A scenario under other conditions.

    Args:
        scenario: how it is written.
        voices: calls take them in turn; none: those of the scenario.
        changes: fields of :class:`Caller` with other values.
        number: of the call.
    """
    changed = {"voice": voices[number % len(voices)], **changes} if voices else changes
    exchanges = scenario.exchanges
    if voices:
        exchanges = tuple(replace(one, voice=changed["voice"]) for one in exchanges)
    return replace(scenario, caller=msgspec.structs.replace(scenario.caller, **changed), exchanges=exchanges)

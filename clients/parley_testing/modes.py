"""How a scenario is held: as text, or as speech under given conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from parley_testing.scenario import Background, Caller, Cue, Exchange, Scenario


@dataclass(frozen=True)
class Conditions:
    """What changes the callers of all scenarios; the defaults leave them as they are."""

    voices: tuple[str, ...] = ()
    """The calls take them in turn."""
    background: Background | None = None
    telephone: bool = False
    loss: float = 0.0

    def caller(self, caller: Caller, number: int) -> Caller:
        """A caller under these conditions; ``number``: of the call."""
        return msgspec.structs.replace(
            caller,
            voice=self.voices[number % len(self.voices)] if self.voices else caller.voice,
            background=self.background or caller.background,
            telephone=self.telephone or caller.telephone,
            loss=self.loss or caller.loss,
        )


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
    )


def _typed(exchange: Exchange) -> Exchange:
    content = exchange.content or (exchange.sentence.text if exchange.sentence else exchange.words)
    return replace(
        exchange,
        kind="dtmf" if exchange.kind == "dtmf" else "text",
        cue=Cue("idle", 0),
        sentence=None,
        file=None,
        content=content,
        words=content.lower(),
        heard=(),
        interrupts=False,
    )


def as_speech(scenario: Scenario, conditions: Conditions, number: int) -> Scenario:
    """A scenario under these conditions; ``number``: of the call."""
    caller = conditions.caller(scenario.caller, number)
    exchanges = scenario.exchanges
    if conditions.voices:
        exchanges = tuple(replace(one, voice=caller.voice) for one in exchanges)
    return replace(scenario, caller=caller, exchanges=exchanges)

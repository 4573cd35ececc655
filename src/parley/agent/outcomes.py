"""What has come of a conversation so far: its step, collected data and decisions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import msgspec

from parley.checkpoint import OutcomeState
from parley.protocol import DataCollected, Decision, StepChanged

OutcomeEvent: TypeAlias = StepChanged | DataCollected | Decision


class Outcomes:
    """Keeps the outcomes of one session, and passes every change to the client and to those who act on it.

    ``emit`` sends an event to the client; ``whole`` keeps a change and its event together in checkpoints;
    ``begun``: the outcomes of another session, which this one goes on with.
    """

    def __init__(
        self,
        emit: Callable[[OutcomeEvent], None],
        whole: Callable[[], AbstractContextManager[None]],
        begun: OutcomeState | None = None,
    ) -> None:
        self._emit = emit
        self._whole = whole
        self.on_change: Callable[[OutcomeEvent], None] = lambda _: None
        """Called after every change."""
        self.state = begun or OutcomeState()
        """All of them, also what another session needs to go on."""

    def request_step(self, name: str) -> None:
        """Let a step begin as soon as it can; empty: none."""
        if name != self.state.next_step:
            with self._whole():
                self._change(next_step=name)

    def set_step(self, name: str) -> None:
        """Enter a step."""
        previous = self.state.step
        self._change(step=name, next_step="")
        if name != previous:
            self._publish(StepChanged(step=name, previous=previous))

    def set_collected(self, field: str, value: str, *, confirmed: bool = False) -> None:
        """Set, confirm or (with an empty value) take back a field's value."""
        state, confirmed = self.state, confirmed and bool(value)
        if (state.collected.get(field, ""), field in state.confirmed) == (value, confirmed):
            return
        collected = {name: one for name, one in (state.collected | {field: value}).items() if one}
        others = [name for name in state.confirmed if name != field]
        self._change(collected=collected, confirmed=sorted([*others, field] if confirmed else others))
        self._publish(DataCollected(field=field, value=value, confirmed=confirmed))

    def set_decision(self, decision: Decision) -> None:
        """Keep the answer to a question."""
        self._change(decisions=self.state.decisions | {decision.name: decision.state})
        self._publish(decision)

    def _change(self, **values: object) -> None:
        self.state = msgspec.structs.replace(self.state, **values)

    def _publish(self, event: OutcomeEvent) -> None:
        with self._whole():
            self._emit(event)
            self.on_change(event)

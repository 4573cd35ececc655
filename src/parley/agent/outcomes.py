"""What has come of a conversation so far: its step, collected data and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeAlias

from parley.checkpoint import DecidedState, OutcomeState
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
        begun = begun or OutcomeState()
        self._emit = emit
        self._whole = whole
        self._listeners: list[Callable[[OutcomeEvent], None]] = []
        self.step = begun.step
        """Name of the current step; empty: there are none."""
        self.next_step = begun.next_step
        """Name of the step that is to begin; empty: none."""
        self._collected = dict(begun.collected)
        self._confirmed = set(begun.confirmed)
        self._decisions = dict(begun.decisions)

    @property
    def collected(self) -> Mapping[str, str]:
        """Values of collected fields by name."""
        return self._collected

    @property
    def confirmed(self) -> frozenset[str]:
        """Names of the collected fields that the user has agreed to."""
        return frozenset(self._confirmed)

    @property
    def decisions(self) -> Mapping[str, DecidedState]:
        """The last answer to each question about the conversation."""
        return self._decisions

    @property
    def state(self) -> OutcomeState:
        """What another session needs to go on with them."""
        return OutcomeState(
            step=self.step,
            next_step=self.next_step,
            collected=dict(self._collected),
            confirmed=sorted(self._confirmed),
            decisions=dict(self._decisions),
        )

    def subscribe(self, listener: Callable[[OutcomeEvent], None]) -> None:
        """Call ``listener`` after every change."""
        self._listeners.append(listener)

    def request_step(self, name: str) -> None:
        """Let a step begin as soon as it can; empty: none."""
        if name != self.next_step:
            with self._whole():
                self.next_step = name

    def set_step(self, name: str) -> None:
        """Enter a step."""
        self.next_step = ""
        if name != self.step:
            previous, self.step = self.step, name
            self._publish(StepChanged(step=name, previous=previous))

    def set_collected(self, field: str, value: str, *, confirmed: bool = False) -> None:
        """Set, confirm or (with an empty value) take back a field's value."""
        if self._collected.get(field, "") == value and (field in self._confirmed) == confirmed:
            return
        self._confirmed.discard(field)
        if value:
            self._collected[field] = value
            if confirmed:
                self._confirmed.add(field)
        else:
            self._collected.pop(field, None)
        self._publish(DataCollected(field=field, value=value, confirmed=confirmed and bool(value)))

    def set_decision(self, decision: Decision) -> None:
        """Keep the answer to a question."""
        self._decisions[decision.name] = DecidedState(
            value=decision.value, probability=decision.probabilities[decision.value], turn=decision.turn
        )
        self._publish(decision)

    def _publish(self, event: OutcomeEvent) -> None:
        with self._whole():
            self._emit(event)
            for listener in self._listeners:
                listener(event)

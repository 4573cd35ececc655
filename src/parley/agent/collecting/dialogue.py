"""The dialogue that collects one value at a time: the user's turns in, fixed texts and values out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import msgspec

from parley.agent.collecting import wording
from parley.agent.collecting.corrections import correct
from parley.agent.collecting.reading import MAX_TEXT, Doubt, ReadValue, UserAnswer, has_letters, read
from parley.agent.collecting.spelling import AS_IN, Spelled, spell
from parley.checkpoint import CollectState
from parley.protocol import CollectField

MOST_ATTEMPTS = 3
"""Answers that were no possible value; then the field is given up."""
MOST_LEFT = 3
"""Answers about something else; then it is given up too."""
MOST_READ_BACKS = 6
"""Questions whether a value or a part of it is right; with one more it is given up."""
_SURE = 0.6
"""Confidence of the recogniser from which ``if_unsure`` does without a read-back."""
_LONGEST_CHOICE = 12
"""Characters of two values of which the user is asked to choose one; longer codes are said again."""
_SHORT = 3
"""Words behind a "no" that need not be understood."""
_DENIAL = re.compile(
    r"^(?:(?:no|nope|sorry|wrong|not quite|that'?s wrong|not right|that'?s not right|incorrect)\b[\s,.!]*)+",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Outcome:
    """What follows a turn of the user."""

    say: str = ""
    """Spoken verbatim; empty: the language model answers."""
    field: str = ""
    """The field that is done; empty: none is."""
    value: str = ""
    """Its value; empty: it was given up."""
    confirmed: bool = False


class Dialogue:
    """Asks for the fields of a session, one at a time.

    ``begun``: the state of another session, which this one goes on with.
    """

    def __init__(self, fields: Sequence[CollectField], begun: CollectState | None = None) -> None:
        self._fields = {field.name: field for field in fields}
        begun = begun or CollectState()
        can_go_on = begun.field in self._fields and len(begun.value) <= MAX_TEXT
        self.state = begun if can_go_on else CollectState()
        """What is being asked."""
        self._spelled: Spelled | None = None
        if self.active and self.state.value:
            self._spelled = spell(self.state.value, letters=has_letters(self._fields[self.state.field]))

    @property
    def active(self) -> CollectField | None:
        """The field that the user is asked for; None: there is none."""
        return self._fields.get(self.state.field)

    @property
    def phrases(self) -> Sequence[str]:
        """What the user may say now."""
        field = self.active
        if field is None:
            return ()
        spelled = has_letters(field) and (self.state.attempts > 0 or self.state.phase != "value")
        return (*field.phrases, *field.values, *(AS_IN if spelled else ()))

    def ask(self, name: str) -> str:
        """Begin to ask for a field; returns the question."""
        self.state, self._spelled = CollectState(field=name), None
        return wording.ask(self._fields[name])

    def stop(self) -> None:
        """Ask for nothing any more."""
        self.state, self._spelled = CollectState(), None

    def on_turn(self, heard: UserAnswer, today: date) -> Outcome:
        """Handle a turn of the user while a field is active."""
        field, state = self.active, self.state
        if field is None:
            return Outcome()
        text = heard.text[:MAX_TEXT].strip()
        denied = wording.is_no(text)
        if state.phase == "confirm" and wording.is_yes(text):
            return self._done(state.value, confirmed=True)
        rest = _DENIAL.sub("", text)
        outcome = self._corrected(field, text) or self._read(
            field, replace(heard, text=rest), today, denied=denied
        )
        if outcome is not None:
            return outcome
        if denied and len(rest.split()) <= _SHORT and state.value:
            return self._again(field, wording.ask_wrong(field))
        return self._leave(state)

    def _corrected(self, field: CollectField, text: str) -> Outcome | None:
        """A change of the value so far; None: no part of it is named."""
        state = self.state
        doubt = Doubt(state.one, state.other, state.place) if state.phase == "part" else None
        changed = correct(field, state.value, text, doubt) if state.value else None
        if not changed or (changed == state.value and doubt is None):
            return None
        self._spelled = None
        return self._accept(field, changed, sure=False)

    def _read(self, field: CollectField, heard: UserAnswer, today: date, *, denied: bool) -> Outcome | None:
        """A whole value; None: the user does not try to say one."""
        state = self.state
        if not heard.text:
            return None
        reading = read(field, heard, today, self._spelled)
        confirming = state.phase == "confirm" and not denied
        if confirming and field.kind in ("text", "name") and not reading.repeats(state.value, heard.text):
            return None
        if confirming and reading.value and reading.value == state.value:
            return self._done(state.value, confirmed=True)
        return self._take(field, reading, heard) if reading.tried else None

    def _take(self, field: CollectField, reading: ReadValue, heard: UserAnswer) -> Outcome:
        self._spelled = reading.spelled
        doubt = reading.doubt
        if doubt is not None and doubt.place < 0 and len(doubt.one) > _LONGEST_CHOICE and not field.values:
            reading, doubt = ReadValue(spelled=reading.spelled, tried=True), None
        if not reading.value:
            said = reading.spelled.text if reading.spelled else ""
            last = self.state.attempts + 2 >= MOST_ATTEMPTS
            return self._again(field, wording.ask_again(field, said, last=last))
        if doubt is not None and field.confirm != "never":
            changes = {"one": doubt.one, "other": doubt.other, "place": doubt.place}
            question = wording.ask_part(field, reading.value, doubt)
            return self._check(field, question, phase="part", value=reading.value, **changes)
        return self._accept(field, reading.value, sure=heard.confidence >= _SURE)

    def _accept(self, field: CollectField, value: str, *, sure: bool) -> Outcome:
        if field.confirm == "never" or (field.confirm == "if_unsure" and sure):
            return self._done(value, confirmed=False)
        return self._check(field, wording.read_back(field, value), phase="confirm", value=value)

    def _check(self, field: CollectField, question: str, **changes: object) -> Outcome:
        """Ask whether a value or a part of it is right, unless that was asked too often."""
        if self.state.read_backs >= MOST_READ_BACKS:
            self.stop()
            return Outcome(field=field.name)
        self._change(read_backs=self.state.read_backs + 1, **changes)
        return Outcome(question)

    def _again(self, field: CollectField, text: str) -> Outcome:
        attempts = self.state.attempts + 1
        if attempts >= MOST_ATTEMPTS:
            self.stop()
            return Outcome(field=field.name)
        self._change(phase="value", attempts=attempts)
        return Outcome(text)

    def _leave(self, state: CollectState) -> Outcome:
        """The user speaks of something else: the language model answers, and the field stays active."""
        left = state.left + 1
        if left >= MOST_LEFT:
            self.stop()
            return Outcome(field=state.field)
        self._change(left=left)
        return Outcome()

    def _done(self, value: str, *, confirmed: bool) -> Outcome:
        name = self.state.field
        self.stop()
        return Outcome(field=name, value=value, confirmed=confirmed)

    def _change(self, **changes: object) -> None:
        cleared = {"one": "", "other": "", "place": -1} if "phase" in changes else {}
        self.state = msgspec.structs.replace(self.state, **{**cleared, **changes})

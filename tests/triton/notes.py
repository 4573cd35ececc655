"""What a scripted call writes down."""

from __future__ import annotations


class Notes:
    """Remembers every event of the call."""

    def __init__(self):
        self.events = []

    def begin_turn(self, turn, at_s):
        pass

    def show(self, event, at_s):
        self.events.append(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

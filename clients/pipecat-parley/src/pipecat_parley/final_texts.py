"""Which final text is the last of what was said."""

from __future__ import annotations

from dataclasses import dataclass

from parley.asr.messages import TranscriptEvent


@dataclass(frozen=True)
class Text:
    """A text to tell."""

    event: TranscriptEvent
    finalized: bool = False
    """Nothing more belongs to what was said before the final text was asked for."""


class FinalTexts:
    """Holds a final text back until the next event tells whether more belongs to what was said.

    That event comes right after it, because it is the answer to the same request.
    """

    def __init__(self) -> None:
        self._asked = 0  # times that are not answered yet
        self._held: TranscriptEvent | None = None

    def ask(self) -> None:
        """The final text was asked for, and an answer of its own follows."""
        self._asked += 1

    def heard(self, event: TranscriptEvent) -> list[Text]:
        """The recogniser has written something; what to tell now."""
        texts = self.release()
        if event.is_final and self._asked:
            self._held = event
        else:
            texts.append(Text(event))
        return texts

    def finalized(self) -> list[Text]:
        """The recogniser has answered; empty: all of it was told before."""
        self._asked = max(0, self._asked - 1)
        return [Text(text.event, finalized=True) for text in self.release() if text.event.text]

    def release(self) -> list[Text]:
        """What is held back, since nothing more comes of it."""
        held, self._held = self._held, None
        return [] if held is None else [Text(held)]

    def begin(self) -> None:
        """Another stream: nothing has been asked for."""
        self._asked = 0

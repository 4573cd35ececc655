"""What an interrupted answer was still to say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from parley.chat import ChatMessage
from parley.knowledge.passages import content_words
from parley.llm.messages import CUT
from parley.tts.markdown import without_markdown
from parley.turns.interruption import InterruptionWords, words_of

_WHOLE_SENTENCES = re.compile(r"\A.*[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019)\]]*(?=\s|\Z)", re.DOTALL)
_QUESTION = re.compile(r"\A[^.!\u2026\u3002\uff01]*[?\uff1f]")
_BETWEEN = " ,.!?;:"


@dataclass(frozen=True)
class Unheard:
    """The part of an answer that was written, and not heard."""

    text: str
    """From the first word that was not heard to the end of a sentence."""
    asks: bool
    """Whether the answer was cut in a question or beside one."""
    whole: bool = True
    """Whether the language model had written all of the answer."""
    wanted: bool = False
    """Whether it is still relevant after the user's last turn."""

    def is_wanted(self, said: str, about: str, words: InterruptionWords) -> bool:
        """Whether a turn of the user is about the same, and neither a refusal nor a correction.

        Never in languages whose words are not known. ``about``: what was asked and heard.
        """
        spoken = words_of(said)
        if not words.refers or words.drops_rest(spoken):
            return False
        if not words.refers.isdisjoint((word,) for word in spoken):
            return True
        known = content_words(f"{about} {self.text}")
        return any(
            one.startswith(other) or other.startswith(one) for one in content_words(said) for other in known
        )


def find_unheard(written: Iterable[str], remembered: Iterable[ChatMessage]) -> Unheard | None:
    """What is missing in the history of an answer; None: nothing, or no whole sentence ends there.

    Args:
        written: all texts of the answer.
        remembered: its messages in the history.
    """
    said = without_markdown(" ".join(written)).rstrip().removesuffix(CUT)
    heard = without_markdown(" ".join(one.content for one in remembered if one.role == "assistant"))
    # The ends of pieces that were spoken have other white space and punctuation.
    letters = [place for place, char in enumerate(said) if char.isalnum()]
    count = sum(map(str.isalnum, heard))
    if count >= len(letters) or [said[at] for at in letters[:count]] != list(filter(str.isalnum, heard)):
        return None
    behind = letters[count - 1] + 1 if count else 0
    begin = max(behind, *(said.rfind(space, 0, letters[count]) + 1 for space in " \n"))
    found = _WHOLE_SENTENCES.match(said[begin:].lstrip(_BETWEEN))
    if found is None:
        return None
    asks = said[:begin].rstrip().endswith(("?", "\uff1f")) or _QUESTION.match(found[0]) is not None
    return Unheard(found[0], asks)

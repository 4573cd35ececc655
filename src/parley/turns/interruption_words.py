"""What the words mean that are said while the agent speaks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("interruption_words.toml")
ECHO_SHARE = 0.7
"""Words of a text that the agent must have said itself, if it is to be an echo."""
ECHO_WORDS = 40
"""The agent's last words that can still come back."""
SHORT_ECHO_WORDS = 6
"""The same for one or two words, which the user may well say too."""

_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
_WORD = re.compile(r"\w[\w'-]*")
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower().replace(_APOSTROPHE, "'"))


def as_said(words: Iterable[str]) -> list[str]:
    """Words with English ones for figures, and without hyphens.

    Some recognisers write "10 minutes" and "twenty-five", others "ten minutes" and "twenty five".
    """
    return [said for word in words for part in word.split("-") if part for said in _spelled(part)]


def _spelled(word: str) -> list[str]:
    if not (word.isascii() and word.isdecimal() and len(word) <= 2):
        return [word]
    number = int(word)
    if number < len(_SMALL):
        return [_SMALL[number]]
    tens, ones = divmod(number, 10)
    return [_TENS[tens - 2], *([_SMALL[ones]] if ones else [])]


@dataclass(frozen=True)
class InterruptionWords:
    """The words of one language that mean something of their own while the agent speaks."""

    backchannels: frozenset[tuple[str, ...]]
    commands: frozenset[tuple[str, ...]]

    def is_backchannel(self, words: Sequence[str]) -> bool:
        """Whether all of it are signs of listening: "yeah okay"."""
        return bool(words) and _is_made_of(tuple(words), self.backchannels)

    def is_command(self, words: Sequence[str]) -> bool:
        """Whether it demands silence: "stop", "no no", "okay wait a minute"."""
        return (
            bool(words)
            and _is_made_of(tuple(words), self.commands | self.backchannels)
            and not self.is_backchannel(words)
        )


def is_echo(words: Sequence[str], agent_words: Sequence[str]) -> bool:
    """Whether the agent hears itself.

    Args:
        words: what was heard.
        agent_words: what of this answer has been played so far.
    """
    own = as_said(agent_words[-(ECHO_WORDS if len(words) > 2 else SHORT_ECHO_WORDS) :])
    heard = as_said(words)
    if not heard or not own:
        return False
    matches = SequenceMatcher(None, heard, own, autojunk=False).get_matching_blocks()
    return sum(match.size for match in matches) >= ECHO_SHARE * len(heard)


@cache
def interruption_words(language: str) -> InterruptionWords:
    """The words of a language; a language that is not in the file has none."""
    with FILE.open("rb") as file:
        table = tomllib.load(file).get(language, {})
    return InterruptionWords(_phrases(table.get("backchannels", ())), _phrases(table.get("commands", ())))


def _phrases(entries: Iterable[str]) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(words_of(entry)) for entry in entries)


def _is_made_of(words: tuple[str, ...], phrases: frozenset[tuple[str, ...]]) -> bool:
    """Whether the words are phrases of the set, one after the other."""
    reachable = {0}
    for end in range(1, len(words) + 1):
        if any(words[start:end] in phrases for start in reachable):
            reachable.add(end)
    return len(words) in reachable

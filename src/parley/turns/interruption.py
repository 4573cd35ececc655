"""Whether speech over the agent is an interruption.

::

    onset ──▶ undecided ──words, or speech that lasts──▶ Interrupt
                 │  ▲
                 │  └── after a time without words the agent goes on, and is still watched
                 └──silence: a noise, an "mhm", an echo──▶ Resume

One object judges one sound, from its onset to the decision. Nothing here waits or calls: the caller brings
the time with every event (seconds of one monotonic clock) and does what the answers say.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path
from typing import Literal, TypeAlias

from parley.protocol import BargeInOptions
from parley.spoken import say_number

FILE = Path(__file__).with_name("interruption_words.toml")
ECHO_SHARE = 0.7
"""Share of a text's words that the agent must have said for the text to be an echo."""
ECHO_WORDS = 40
"""The agent's last words that can still come back."""
SHORT_ECHO_WORDS = 6
"""The same for one or two words, which the user may well say too."""

_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
_WORD = re.compile(r"\w[\w'-]*")
_FIGURES = re.compile(r"[0-9]{1,2}")
_HUM = re.compile(r"([mh])\1+")
_MHM = re.compile(r"m[aeu]?h[aeu]?ma?")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower().replace(_APOSTROPHE, "'"))


def as_said(words: Iterable[str]) -> list[str]:
    """Words with English ones for figures, and without hyphens.

    Some recognisers write "10 minutes" and "twenty-five", others "ten minutes" and "twenty five".
    """
    parts = (part for word in words for part in word.split("-") if part)
    return [
        said for part in parts for said in (say_number(int(part)) if _FIGURES.fullmatch(part) else [part])
    ]


@dataclass(frozen=True)
class InterruptionWords:
    """The words of one language that mean something of their own while the agent speaks."""

    backchannels: frozenset[tuple[str, ...]]
    commands: frozenset[tuple[str, ...]]
    continues: frozenset[tuple[str, ...]]
    """Those of the backchannels that ask the agent to go on."""
    drops: frozenset[tuple[str, ...]]
    refers: frozenset[tuple[str, ...]]
    """Words for what was spoken of before. Empty: it is not known whether a turn wants the rest."""
    acknowledgements: frozenset[tuple[str, ...]]
    """The backchannels that answer nothing but a question."""
    hums: frozenset[tuple[str, ...]]
    """The acknowledgements that are no words."""

    def drops_rest(self, words: Sequence[str]) -> bool:
        """Whether a turn refuses or corrects an answer: by its first words, or by several words in it."""
        said = _as_listed(words)
        first = next((word for word in said if (word,) not in self.backchannels), "")
        return (first,) in self.drops or any(
            said[at : at + len(phrase)] == phrase
            for phrase in self.drops
            for at in range(len(said) if len(phrase) > 1 else 0)
        )

    def asks_to_go_on(self, words: Sequence[str]) -> bool:
        """Whether all of it is a demand to go on: "yes, go on"."""
        return self.is_backchannel(words) and not _is_made_of(
            _as_listed(words), self.backchannels - self.continues
        )

    def is_backchannel(self, words: Sequence[str], *, closing: bool = False) -> bool:
        """Whether all of it are signs of listening: "yeah okay".

        ``closing``: the answer is all but over, so that "yeah" is the user's turn, and "okay" is not.
        """
        return bool(words) and _is_made_of(_as_listed(words), self._signs(closing))

    def may_become_backchannel(self, words: Sequence[str], *, closing: bool = False) -> bool:
        """Whether all of it are signs of listening or the beginning of one: "okay I" of "okay I see"."""
        said, signs = _as_listed(words), self._signs(closing)
        rests = (said[begin:] for begin in _reachable(said, signs))
        return any(phrase[: len(rest)] == rest for rest in rests for phrase in signs)

    def resembles_backchannel(self, words: Sequence[str]) -> bool:
        """Whether it is written much like one: "make sense of"."""
        signs = [" ".join(phrase) for phrase in self.backchannels]
        return bool(get_close_matches(" ".join(_as_listed(words)), signs, 1, _LIKENESS))

    def is_hum(self, words: Sequence[str]) -> bool:
        """Whether there is no word in it: "mhm", "uh"."""
        return bool(words) and _is_made_of(_as_listed(words), self.hums)

    def _signs(self, closing: bool) -> frozenset[tuple[str, ...]]:
        return self.acknowledgements if closing else self.backchannels

    def is_command(self, words: Sequence[str]) -> bool:
        """Whether it demands silence: "stop", "no no", "okay wait a minute"."""
        return (
            bool(words)
            and _is_made_of(_as_listed(words), self.commands | self.backchannels)
            and not self.is_backchannel(words)
        )


def is_echo(words: Sequence[str], agent_words: Sequence[str]) -> bool:
    """Whether ``words`` are an echo of ``agent_words``, the part of the answer played so far."""
    own = as_said(agent_words[-(ECHO_WORDS if len(words) > 2 else SHORT_ECHO_WORDS) :])
    spoken = as_said(words)
    if not spoken or not own:
        return False
    matches = SequenceMatcher(None, spoken, own, autojunk=False).get_matching_blocks()
    return sum(match.size for match in matches) >= ECHO_SHARE * len(spoken)


@cache
def interruption_words(language: str) -> InterruptionWords:
    """The words of a language; a language that is not in the file has none."""
    with FILE.open("rb") as file:
        table = tomllib.load(file).get(language, {})
    names = ("hums", "acknowledgements", "answers", "commands", "continues", "drops", "refers")
    hums, listed, answers, commands, continues, drops, refers = (
        _phrases(table.get(name, ())) for name in names
    )
    acknowledgements = hums | listed
    backchannels = acknowledgements | answers | continues
    return InterruptionWords(backchannels, commands, continues, drops, refers, acknowledgements, hums)


def _phrases(entries: Iterable[str]) -> frozenset[tuple[str, ...]]:
    return frozenset(_as_listed(words_of(entry)) for entry in entries)


def _as_listed(words: Iterable[str]) -> tuple[str, ...]:
    """Words without hyphens, and each hum in one spelling: "mm-hmm" is "m hm", and "mehem" is "mhm"."""
    parts = (_HUM.sub(r"\1", part) for word in words for part in word.split("-") if part)
    return tuple("mhm" if _MHM.fullmatch(part) else part for part in parts)


def _is_made_of(words: tuple[str, ...], phrases: frozenset[tuple[str, ...]]) -> bool:
    """Whether the words are phrases of the set, one after the other."""
    return len(words) in _reachable(words, phrases)


def _reachable(words: tuple[str, ...], phrases: frozenset[tuple[str, ...]]) -> set[int]:
    """How many of the first words are phrases of the set, one after the other: all such numbers."""
    longest = max(map(len, phrases), default=0)
    reachable = {0}
    for end in range(1, len(words) + 1):
        starts = range(max(0, end - longest), end)
        if any(start in reachable and words[start:end] in phrases for start in starts):
            reachable.add(end)
    return reachable


def _once(words: list[str]) -> list[str]:
    """Without repetition: of very short audio recognisers write "I say I say I"."""
    for period in range(1, len(words) // 2 + 1):
        if words[period:] == words[:-period]:
            return words[:period]
    return words


HOLD_S = 1.5
"""Sound without words keeps the agent silent for so long at most, and so does a text that does not come."""
_EARLY_WORDS = 2
"""Words that count before the utterance is over. The agent is silent meanwhile: waiting loses nothing."""
_FOLLOWING_WORDS = 2
"""A word of a partial text is stable when so many others follow it, or when the text before had it too."""
_SURE = 0.5
_CONFIDENCE = 0.4
"""Confidence of words that are believed: recognisers make words of an "mhm", but not with conviction.

A single word, words before the end of the utterance, and what lasted no longer than a "hmm" does have to be
surer; a command at its end need not be.
"""
_SHORT_MS = 600
"""By VAD, which is a little longer than the sound."""
_CERTAIN = 0.93
_BRIEF_MS, _FEW_WORDS = 800, 3
"""Of an "mhm" or "I see" recognisers make words that they are sure of ("Emily"). What is no longer stops
nothing, unless they are certain, it is a command, or the agent expects an answer."""
_LIKENESS = 0.8
"""Likeness of the letters from which a text that is not certain may be a sign of listening."""


@dataclass(frozen=True)
class InterruptSpeech:
    """The agent is to stop."""

    reason: Literal["words", "speech", "command"]


@dataclass(frozen=True)
class ResumeSpeech:
    """The agent is to go on."""

    reason: Literal["noise", "backchannel", "echo", "too_short", "too_few_words", "no_words"]
    text: str = ""


Verdict: TypeAlias = InterruptSpeech | ResumeSpeech | None


class InterruptionPolicy:
    """The policy for one sound.

    Args:
        language: words that mean something of their own.
        agent_text: what of the agent's answer has been played so far.
        closing: whether the answer is all but over, or asks: then a "yes" is the user's turn.
        asks: whether it ends with a question: then an "mhm" is, too.
    """

    def __init__(
        self,
        options: BargeInOptions,
        language: InterruptionWords,
        *,
        agent_text: str,
        closing: bool,
        asks: bool = False,
        began_at: float,
    ) -> None:
        self._options = options
        self._language = language
        self._agent_words = words_of(agent_text)
        self._closing = closing
        self._asks = asks
        self._began_at = began_at
        self._speech_ms: float | None = None
        self._texts: list[str] = []
        self._partial = ""
        self._stable = 0
        """Words of the partial text that will hardly change."""
        self._confidence = 0.0
        self._echoed = 0
        self._held: float | None = began_at + HOLD_S
        self._ticked_at = began_at

    @property
    def due(self) -> float | None:
        """When :meth:`tick` is to be called next (seconds); None: not for the sake of time."""
        times = [] if self._held is None else [self._held]
        if self._speech_ms is None:
            times.append(self._began_at + self._options.min_speech_ms / 1000)
        return min((time for time in times if time > self._ticked_at), default=None)

    @property
    def text(self) -> str:
        """What was understood so far."""
        return " ".join(filter(None, [*self._texts, self._partial]))

    @property
    def only_listens(self) -> bool:
        """Whether what was understood so far is a sign of listening, and answers nothing."""
        return not self._asks and self._language.is_backchannel(words_of(self.text), closing=self._closing)

    def on_speech_stopped(self, speech_ms: float, at: float) -> None:
        """The user is silent; so much time lies between the sound's beginning and its end. A text follows."""
        self._speech_ms = speech_ms
        if self._held is not None:
            self._held = at + HOLD_S

    def on_speech_resumed(self) -> None:
        """The user speaks again, before the text was there."""
        self._speech_ms = None

    def on_echo(self) -> None:
        """All that was understood so far sounded like the agent itself: only what follows counts."""
        self._echoed = max(1, len(words_of(self.text)))

    def on_partial(self, text: str, confidence: float, at: float) -> Verdict:
        """What has been understood so far of the utterance that is being spoken (probability 0-1)."""
        before, heard = words_of(self._partial), words_of(text)
        words = _once(heard)
        pairs = zip(before, words, strict=False)
        repeated = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        runs = [len(list(run)) for _, run in groupby(words)]
        self._stable = max(repeated, sum(runs[:-_FOLLOWING_WORDS]))
        self._partial = text.strip() if words == heard else " ".join(words)
        self._confidence = confidence
        return self._interruption(at, final=False)

    def on_final(self, text: str, confidence: float, at: float, *, more: bool = False) -> Verdict:
        """The final text of an utterance; ``more``: another one belongs to the same sound."""
        self._texts.append(text.strip())
        self._partial, self._stable, self._confidence = "", 0, confidence
        interruption = self._interruption(at, final=not more)
        if interruption is not None or more:
            return interruption
        return ResumeSpeech(self._harmless(words_of(self.text)), self.text)

    def tick(self, at: float) -> Verdict:
        """Time has passed."""
        self._ticked_at = at
        interruption = self._interruption(at, final=False)
        if interruption is not None:
            return interruption
        if self._held is not None and at >= self._held:
            self._held = None
            return ResumeSpeech(self._harmless(words_of(self.text)), self.text)
        return None

    def _interruption(self, at: float, *, final: bool) -> InterruptSpeech | None:
        options, words = self._options, words_of(self.text)
        fresh = words[self._echoed :]
        if is_echo(words, self._agent_words) or (self._echoed and not fresh):
            return None
        sure = self._is_sure(fresh, final=final)
        if (sure or final) and self._language.is_command(fresh):
            return InterruptSpeech("command")
        length = round((at - self._began_at) * 1000) if self._speech_ms is None else self._speech_ms
        too_short = not self._closing and length < options.min_speech_ms
        listens = not self._asks and self._language.is_backchannel(fresh, closing=self._closing)
        if too_short or listens:
            return None
        if options.min_words == 0:
            return InterruptSpeech("speech")
        needed = max(1 if self._closing else options.min_words, 1 if final else _EARLY_WORDS)
        stable = fresh[: max(0, len(fresh) - len(words_of(self._partial)) + self._stable)]
        if not final:
            # Of very short audio recognisers repeat a word: "make make make" of "makes sense".
            stable = [word for word, _ in groupby(stable)]
        becoming = not final and not self._asks
        if becoming and self._language.may_become_backchannel(stable, closing=self._closing):
            return None
        enough = sure and len(stable) >= needed and not self._may_be_backchannel(fresh)
        return InterruptSpeech("words") if enough else None

    def _is_sure(self, words: Sequence[str], *, final: bool) -> bool:
        short = self._speech_ms is not None and self._speech_ms < _SHORT_MS
        return self._confidence >= (_CONFIDENCE if final and len(words) > 1 and not short else _SURE)

    def _may_be_backchannel(self, words: Sequence[str]) -> bool:
        """Whether a sign of listening may have been understood as these words."""
        if self._closing or self._confidence >= _CERTAIN or len(words) > _FEW_WORDS:
            return False
        brief = self._speech_ms is not None and self._speech_ms < _BRIEF_MS
        listed = bool(self._language.backchannels)
        return (brief and listed) or self._language.resembles_backchannel(words)

    def _harmless(
        self, words: Sequence[str]
    ) -> Literal["backchannel", "echo", "too_short", "too_few_words", "no_words"]:
        if not words:
            return "no_words"
        if is_echo(words, self._agent_words) or len(words) <= self._echoed:
            return "echo"
        if self._language.is_backchannel(words):
            return "backchannel"
        if not self._is_sure(words, final=True):
            return "no_words"
        return "too_few_words" if len(words) < self._options.min_words else "too_short"

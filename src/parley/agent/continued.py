"""A response that another session has begun: what of it was spoken, and what is left to be spoken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parley.agent.memory import UNREMEMBERED, ToolRound
from parley.agent.playout import SPOKEN_CHARACTERS_PER_MS, PlayedWord, SentSpeech
from parley.checkpoint import AgentTurnState, ResponseProgress
from parley.llm.messages import CUT
from parley.tts.markdown import MarkdownFilter, without_markdown
from parley.tts.text import has_words

_WORDS_SKIPPED = 3
"""Words of the text that may have no mark in a row."""
_PIECE = 40
"""Letters from which a mark may be a piece of a word: segments are shorter than the longest words."""
_BLOCK_MS = 50
"""A word begins this much behind the beginning of its piece of audio, on average."""
_WHOLE = 0.5
"""Share of a word's expected length from which the word counts as spoken; otherwise it is spoken again."""
_UNMARKED_MS = 1_500
"""Audio behind the last marked word from which there are words without a mark in it."""


@dataclass(frozen=True)
class BegunResponse:
    """A response of another session, for the turn that goes on with it."""

    rounds: tuple[ToolRound, ...] = ()
    """Those that the language model has ended."""
    text: str = ""
    """Of the round that it has not ended, without white space around it."""
    spaced: bool = False
    """Whether the client has white space behind it."""
    written: bool = False
    """Whether the client has text of it."""
    left: tuple[tuple[int, str], ...] = ()
    """Round and known text that was not spoken, in order."""
    spoken: tuple[SentSpeech, ...] = ()
    audio_ms: int = 0
    """Length of the audio that the client has."""
    played_ms: int = 0
    over: bool = False
    """Whether no more text is generated."""
    cut: bool = False
    """Whether ``max_tokens`` ended the text. Its end, which the client has, is in no round and not spoken."""
    done: bool = False
    """Whether the client also has all of the audio."""

    def left_of(self, number: int) -> str:
        """What is left of one round's text."""
        return "".join(text for part, text in self.left if part == number)


@dataclass(frozen=True)
class _Part:
    """A stretch of the text that belongs to one round."""

    round_number: int
    begin: int
    end: int


@dataclass(frozen=True)
class _SpokenWord:
    offset_ms: int
    begin: int
    end: int
    """Half-open span in the text, with the punctuation behind the word."""


def find_begun(
    state: AgentTurnState, progress: ResponseProgress | None, apologies: Sequence[str] = ()
) -> BegunResponse:
    """What is known of a response that has begun.

    ``progress``: what the client has of it; None, or of another response: nothing. ``apologies``: sentences
    that end a response that has failed.
    """
    rounds = tuple(
        ToolRound(one.text, list(one.calls), dict(one.results), said=one.said, ended=True)
        for one in state.rounds
    )
    if progress is None or progress.response_id != state.response_id:
        return BegunResponse(rounds, left=_texts_of(rounds), over=_is_over(rounds))
    text = state.text if state.kind == "say" else progress.text
    if state.kind == "say":
        number = 0 if state.remember else UNREMEMBERED
        parts, failed = [_Part(number, 0, len(text))], False
    else:
        parts, failed = _parts(text, rounds, apologies)
    words = _align(text, progress.words)
    if not progress.done:
        words = _without_cut(words, text, progress.audio_ms)
    reached = _reached(words, text, progress.audio_ms)
    open_part = next((part for part in parts if part.round_number == len(rounds)), None)
    known = text[open_part.begin : open_part.end] if open_part and state.kind == "answer" else ""
    left = [(part.round_number, text[max(part.begin, reached) : part.end].rstrip()) for part in parts]
    return BegunResponse(
        rounds,
        text=known.strip(),
        spaced=known != known.rstrip(),
        written=bool(progress.text),
        left=() if progress.done else tuple((number, rest) for number, rest in left if rest),
        spoken=tuple(_segments(words, parts, text)),
        audio_ms=progress.audio_ms,
        played_ms=progress.played_ms,
        cut=has_words(text[parts[-1].end :]),
        over=progress.done or failed or (_is_over(rounds) and not has_words(known)),
        done=progress.done,
    )


def _texts_of(rounds: Sequence[ToolRound]) -> tuple[tuple[int, str], ...]:
    return tuple((number, answer.text) for number, answer in enumerate(rounds) if answer.said)


def _is_over(rounds: Sequence[ToolRound]) -> bool:
    """Whether the last round is the answer."""
    return bool(rounds) and rounds[-1].said and not rounds[-1].calls


def _parts(text: str, rounds: Sequence[ToolRound], apologies: Sequence[str]) -> tuple[list[_Part], bool]:
    """Which round each stretch of the text belongs to; whether the response has failed.

    What follows the answer in the text belongs to none: ``max_tokens`` has cut it off.
    """
    parts: list[_Part] = []
    begin = 0
    for number, answer in enumerate(rounds):
        written = answer.text.rstrip().removesuffix(CUT).strip()
        found = text.find(written, begin) if written else -1
        if found >= 0:
            end = found + len(written)
            parts.append(_Part(number, begin, end))
            begin = end
    if _is_over(rounds) and parts and parts[-1].round_number == len(rounds) - 1:
        return parts, False
    end = len(text.rstrip())
    apology = next((one for one in apologies if one and text.endswith(one, begin, end)), "")
    parts.append(_Part(len(rounds), begin, end - len(apology) if apology else len(text)))
    if apology:
        parts.append(_Part(UNREMEMBERED, end - len(apology), end))
    return parts, bool(apology)


def _align(text: str, marks: Iterable[tuple[int, str]]) -> list[_SpokenWord]:
    """Where in the text the spoken words are. White space, punctuation and Markdown do not count.

    Words that are not in the text, such as those of a filler, are left out.
    """
    reader = MarkdownFilter()
    read = reader.push(text) + reader.finish()
    letters = [(index, char.lower()) for index, char in enumerate(read) if _counts(char)]
    joined = "".join(char for _, char in letters)
    ends_word = [
        number + 1 == len(letters) or letters[number + 1][0] > index + 1
        for number, (index, _) in enumerate(letters)
    ]
    begins = [number for number in range(len(letters)) if not number or ends_word[number - 1]]

    def is_at(word: str, position: int) -> bool:
        if not joined.startswith(word, position):
            return False
        return len(word) >= _PIECE or ends_word[position + len(word) - 1]

    said = [
        (offset_ms, word) for offset_ms, piece in marks for word in map(_letters_of, piece.split()) if word
    ]
    found: list[_SpokenWord] = []
    position = 0
    for number, (offset_ms, word) in enumerate(said):
        at = position
        if not is_at(word, at):
            following = said[number + 1][1] if number + 1 < len(said) else None
            next_word = bisect_right(begins, position)
            candidates = begins[next_word : next_word + _WORDS_SKIPPED]
            # A single word may be anywhere: with the next one it is no accident.
            at = next(
                (
                    one
                    for one in candidates
                    if is_at(word, one) and following is not None and is_at(following, one + len(word))
                ),
                -1,
            )
        if at < 0:
            continue
        position = at + len(word)
        end = letters[position - 1][0] + 1
        while end < len(read) and not read[end].isalnum() and not read[end].isspace():
            end += 1
        written_end = reader.places[end] if end < len(read) else len(text.rstrip())
        found.append(_SpokenWord(offset_ms, reader.places[letters[at][0]], written_end))
    return found


def _counts(char: str) -> bool:
    return char.isalnum() and len(char.lower()) == 1


def _letters_of(word: str) -> str:
    return "".join(char.lower() for char in word if _counts(char))


def _without_cut(words: list[_SpokenWord], text: str, audio_ms: int) -> list[_SpokenWord]:
    """Leave out the last word if most of its audio is missing."""
    if words:
        last = words[-1]
        letters = _letters_of(without_markdown(text[last.begin : last.end]))
        expected_ms = len(letters) / SPOKEN_CHARACTERS_PER_MS
        if audio_ms - last.offset_ms - _BLOCK_MS < _WHOLE * expected_ms:
            return words[:-1]
    return words


def _reached(words: Sequence[_SpokenWord], text: str, audio_ms: int) -> int:
    """How many characters of the text were spoken; estimated where words have no marks."""
    end = words[-1].end if words else 0
    unmarked_ms = audio_ms - (words[-1].offset_ms if words else 0)
    if unmarked_ms < _UNMARKED_MS:
        return end
    estimate = (words[-1].begin if words else 0) + int(unmarked_ms * SPOKEN_CHARACTERS_PER_MS)
    if estimate >= len(text):
        return len(text)
    return max(end, text.rfind(" ", 0, estimate + 1))


def _segments(words: Sequence[_SpokenWord], parts: Sequence[_Part], text: str) -> Iterable[SentSpeech]:
    for part in parts:
        inside = [word for word in words if part.begin <= word.begin < part.end]
        if not inside:
            continue
        begin = next(index for index in range(part.begin, part.end) if not text[index].isspace())
        begin_ms = inside[0].offset_ms
        yield SentSpeech(
            part.round_number,
            text[begin : inside[-1].end],
            begin_ms,
            complete=True,
            words=[
                PlayedWord(word.begin - begin, word.end - begin, word.offset_ms - begin_ms) for word in inside
            ],
        )

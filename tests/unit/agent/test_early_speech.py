"""When the words of a sentence are spoken before all of it is written."""

from __future__ import annotations

import asyncio

import pytest

from parley.agent.answer_text import AnswerText
from parley.agent.memory import ToolRound

LONG = "The largest building that people know of was built in a very old town by the sea for a queen."


async def spoken(text: str, word_s: float, *, early: bool = True) -> list[str]:
    """The segments of a text of which a word is written every so many seconds."""
    said: list[str] = []

    async def say(segments) -> None:
        said.extend(segments)

    answer = AnswerText(ToolRound(), write=lambda _: None, say=say, facts=None, aloud=True, early=early)
    for number, word in enumerate(text.split()):
        await answer.push(f" {word}" if number else word)
        await asyncio.sleep(word_s)
    await answer.finish(cut=False)
    return said


@pytest.mark.parametrize(
    ("word_s", "segments"),
    [
        (0.03, ["The capital of France", "is Paris."]),
        (0.4, ["The capital of France is Paris."]),
    ],
)
async def test_speech_begins_within_a_sentence_where_writing_is_faster(word_s, segments):
    assert await spoken("The capital of France is Paris.", word_s) == segments


async def test_speech_of_a_voice_that_needs_sentences_begins_with_one():
    assert await spoken("The capital of France is Paris.", 0.03, early=False) == [
        "The capital of France is Paris."
    ]


async def test_sentence_is_parted_again_only_before_the_voice_falls_silent():
    fast, slow = await spoken(LONG, 0.03), await spoken(LONG, 0.25)
    assert fast == ["The largest building that people know", LONG.removeprefix(fast[0]).strip()]
    assert len(slow) > len(fast)
    assert " ".join(slow) == LONG

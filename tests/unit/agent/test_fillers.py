"""What is said while tools take their time."""

from __future__ import annotations

import asyncio

import pytest

from parley.agent.config import DEFAULT_FILLERS, parse_fillers
from parley.agent.filler import Filler
from parley.tts.espeak import LANGUAGES


class Mouth:
    def __init__(self, takes_s=0.0):
        self.said = []
        self.takes_s = takes_s

    async def __call__(self, phrase):
        await asyncio.sleep(self.takes_s)
        self.said.append((round(asyncio.get_running_loop().time() - 1000, 3), phrase))


def nothing_left():
    return asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("phrase", "after_s", "rounds_s", "said"),
    [
        pytest.param("One moment.", 1.5, [4], [(1.5, "One moment.")], id="slow tools"),
        pytest.param("One moment.", 1.5, [4, 4, 4], [(1.5, "One moment.")], id="once in a turn"),
        pytest.param("One moment.", 1.5, [1.4, 1.4, 1.4], [], id="quick tools"),
        pytest.param("", 1.5, [100], [], id="no phrase"),
        pytest.param("One moment.", 0.0, [100], [], id="switched off"),
    ],
)
async def test_a_phrase_is_spoken_when_tools_are_slow(phrase, after_s, rounds_s, said):
    mouth = Mouth()
    filler = Filler(phrase, after_s, mouth)
    for round_s in rounds_s:
        async with filler.while_waiting():
            await asyncio.sleep(round_s)
        await asyncio.sleep(10)
    assert mouth.said == said
    assert nothing_left()


async def test_tools_that_fail_take_it_with_them():
    mouth = Mouth()

    async def turn():
        async with Filler("One moment.", 1.5, mouth).while_waiting():
            await asyncio.sleep(1)
            raise ValueError("tool")

    with pytest.raises(ValueError, match="tool"):
        await turn()
    await asyncio.sleep(10)
    assert mouth.said == []
    assert nothing_left()


async def test_a_turn_that_is_cancelled_takes_it_with_it():
    mouth = Mouth()

    async def turn():
        async with Filler("One moment.", 1.5, mouth).while_waiting():
            await asyncio.sleep(100)

    task = asyncio.create_task(turn())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(10)
    assert mouth.said == []
    assert nothing_left()


async def test_results_do_not_wait_for_a_mouth_that_is_full():
    mouth = Mouth(takes_s=1_000)
    loop = asyncio.get_running_loop()
    async with Filler("One moment.", 1.5, mouth).while_waiting():
        await asyncio.sleep(2)
    assert loop.time() == 1_002
    assert nothing_left()


async def test_a_mouth_that_breaks_breaks_nothing_else(caplog):
    async def broken(phrase):
        raise ValueError("mouth")

    async with Filler("One moment.", 1.5, broken).while_waiting():
        await asyncio.sleep(2)
    assert "the filler was not spoken" in caplog.text


def test_phrases_have_languages():
    assert parse_fillers("One moment, please. | de: Einen Moment: bitte. |de:Ich sehe nach.|  | fr:") == {
        "en": ("One moment, please.",),
        "de": ("Einen Moment: bitte.", "Ich sehe nach."),
    }
    assert parse_fillers("Wait: I look.") == {"en": ("Wait: I look.",)}
    assert parse_fillers("") == {}


def test_phrases_exist_for_spoken_languages():
    assert set(DEFAULT_FILLERS) <= set(LANGUAGES)
    assert all(phrases and all(phrases) for phrases in DEFAULT_FILLERS.values())

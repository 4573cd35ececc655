"""How a call of the soak notices that it got what belongs to another one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from soak.conversations import Heard
from soak.scripts import CrossedError, LostTurnError, Script, Scripts, UnexpectedAnswerError, likeness

from parley.protocol import Closed, ErrorEvent, ResponseDone, ResponseText
from parley_client.events import AgentAudio

RATE = 22_050


def spoken(seed, seconds=2.0):
    """Syllables with noise, as espeak-ng makes them: loud and quiet bands that only the seed decides."""
    chance = np.random.default_rng(seed)
    time = np.arange(int(RATE * 0.2)) / RATE
    syllables = [
        sum(np.sin(2 * np.pi * pitch * time) for pitch in chance.uniform(100, 4000, 3))
        * np.hanning(len(time))
        for _ in range(int(seconds / 0.2))
    ]
    return np.concatenate(syllables) * 5000


def speech(seed, breath=0):
    noise = np.random.default_rng(100 + breath).normal(size=len(spoken(seed))) * 200
    return (spoken(seed) + noise).astype(np.int16)


def script(number, words, text):
    return Script(
        text, np.zeros(0, np.int16), words.split(), "", speech(number), f"spoken {number}", f"typed {number}"
    )


ONE = script(1, "what time is it in tokyo", "There are amber bottles.")
TWO = script(2, "my name is anna", "There are crimson candles.")
SCRIPTS = Scripts([ONE, TWO])


def test_that_the_same_words_are_alike_whatever_their_noise():
    assert likeness(speech(1), speech(1, breath=1)) > 0.9
    assert likeness(speech(1), speech(2)) < 0.7


def test_that_an_answer_may_break_off_but_not_go_on():
    whole = speech(1)
    assert likeness(whole, whole[: len(whole) // 3]) > 0.9
    assert likeness(whole, np.concatenate([whole, whole])) == 0
    assert likeness(whole, whole[:0]) == 0


def test_what_belongs_to_the_call():
    SCRIPTS.check_text(ONE, ONE.text)
    SCRIPTS.check_speech(ONE, speech(1, breath=2))
    assert SCRIPTS.check_transcript(ONE, "What time is it in Tokyo?") == 0
    assert SCRIPTS.check_transcript(ONE, "what time is it in kyoto") == 1
    assert SCRIPTS.check_transcript(ONE, "") == 6
    assert SCRIPTS.check_transcript(ONE, "my") == 6
    SCRIPTS.check_answer(ONE.spoken_answer, "spoken 1")


@pytest.mark.parametrize(
    "check",
    [
        lambda: SCRIPTS.check_text(ONE, TWO.text),
        lambda: SCRIPTS.check_text(ONE, f"{ONE.text} {TWO.text}"),
        lambda: SCRIPTS.check_speech(ONE, speech(2, breath=3)),
        lambda: SCRIPTS.check_transcript(ONE, "my name is anna"),
        lambda: SCRIPTS.check_transcript(ONE, "my name is hannah"),
        lambda: SCRIPTS.check_answer(ONE.spoken_answer, "typed 2"),
    ],
)
def test_what_belongs_to_another_call(check):
    with pytest.raises(CrossedError):
        check()


def test_what_belongs_to_no_call():
    with pytest.raises(UnexpectedAnswerError):
        SCRIPTS.check_text(ONE, "There are")
    with pytest.raises(UnexpectedAnswerError):
        SCRIPTS.check_speech(ONE, speech(3))
    with pytest.raises(LostTurnError):
        SCRIPTS.check_answer(ONE.spoken_answer, "Sorry.")


async def hear(heard, *events):
    for event in events:
        await heard.on_event(event)


def audio(response, samples):
    return AgentAudio(1, response, 0, RATE, samples, "")


async def test_the_response_that_a_call_waits_for():
    heard = Heard()
    waiting = asyncio.create_task(heard.response_after({"old"}))
    await hear(
        heard,
        ResponseText(turn=1, response_id="old", text="late"),
        ResponseDone(turn=1, response_id="old", audio_ms=0),
        ResponseText(turn=2, response_id="new", text="There "),
        ResponseText(turn=2, response_id="new", text="are"),
        audio("new", speech(1)[:100]),
        audio("new", speech(1)[100:300]),
    )
    await asyncio.sleep(0)
    assert not waiting.done()
    await hear(heard, ResponseDone(turn=2, response_id="new", audio_ms=14))
    assert await waiting == "new"
    assert heard.texts["new"] == "There are"
    assert (heard.samples_of("new") == speech(1)[:300]).all()


async def test_that_an_error_instead_of_an_answer_is_a_lost_turn():
    heard = Heard()
    waiting = asyncio.create_task(heard.response_after(set()))
    await asyncio.sleep(0)
    await hear(
        heard,
        ErrorEvent(code="model_unavailable", message="", retryable=True),
        ResponseText(turn=1, response_id="apology", text="Sorry."),
        ResponseDone(turn=1, response_id="apology", audio_ms=0),
    )
    with pytest.raises(LostTurnError, match="model_unavailable"):
        await waiting


async def test_that_a_model_which_was_replaced_loses_no_turn():
    heard = Heard()
    waiting = asyncio.create_task(heard.response_after(set()))
    await asyncio.sleep(0)
    await hear(
        heard,
        ErrorEvent(code="asr_fallback", message="", retryable=True),
        ResponseText(turn=1, response_id="answer", text="It's 12."),
        ResponseDone(turn=1, response_id="answer", audio_ms=500),
    )
    assert await waiting == "answer"
    assert heard.fallbacks == ["asr_fallback"]


async def test_that_a_call_that_ends_by_itself_is_no_answer():
    heard = Heard()
    waiting = asyncio.create_task(heard.response_after(set()))
    await hear(heard, Closed(reason="idle"))
    async with heard.changed:
        heard.is_over = True
        heard.changed.notify_all()
    with pytest.raises(UnexpectedAnswerError, match="idle"):
        await waiting

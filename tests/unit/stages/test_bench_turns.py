"""What is measured of a turn, and what becomes of one that fails."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fake_endpoints import (
    ANSWER,
    DONE,
    FINAL,
    PARTIAL,
    QUICK,
    REFUSED,
    Streams,
    begun,
    ended,
    loud,
    over,
    utterance,
)
from stages.protocols import Delta, EndpointError, Prompt, Sound, Text, Usage
from stages.turns import Arrival, answer, call, first_audible_s, recognize, speak


async def test_a_stream_is_timed_from_its_speech():
    turn = await recognize(Streams([(begun, PARTIAL), (over, FINAL), (ended, PARTIAL)]), utterance(), QUICK)
    assert (turn.failure, turn.text, turn.words) == ("", "one two", (0, 2))
    assert 0 < turn.figures["first_partial_ms"] < 300
    assert turn.figures["final_ms"] > 0


async def test_silence_goes_on_until_the_final_text_has_come():
    late = Streams([(lambda stream: stream.heard and stream.silent > 1_600, FINAL), (ended, PARTIAL)])
    turn = await recognize(late, utterance(), QUICK)
    assert turn.figures["final_ms"] > 100


async def test_the_texts_of_an_utterance_with_a_pause_are_joined():
    second = Text("three", is_final=True)
    turn = await recognize(Streams([(over, FINAL), (over, second), (ended, PARTIAL)]), utterance(), QUICK)
    assert (turn.text, turn.words) == ("one two three", (1, 2))


async def test_a_recording_is_sent_when_it_is_over_and_has_no_partial_text():
    turn = await recognize(Streams([(ended, FINAL)], streams=False), utterance(), QUICK)
    assert set(turn.figures) == {"final_ms"}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (REFUSED, "full"),
        ([(begun, EndpointError("lost"))], "lost"),
        ([(begun, PARTIAL)], "ended early"),
        ([(ended, PARTIAL)], "no text"),
        ([(lambda _: False, PARTIAL)], "timeout"),
    ],
)
async def test_every_word_of_an_utterance_that_failed_is_an_error(script, reason):
    turn = await recognize(Streams(script), utterance(), QUICK)
    assert (turn.failure, turn.words, turn.figures) == (reason, (2, 2), {})


def writes(*events):
    """A language model or a voice that sends these, and raises what is an exception."""

    async def send(_asked):
        for event in events:
            await asyncio.sleep(0.01)
            if isinstance(event, Exception):
                raise event
            yield event

    return send


PROMPT = Prompt("", "hello")


async def test_tokens_are_counted_by_the_endpoint():
    counted = await answer(writes(Delta("a"), Delta("b"), Usage(41)), PROMPT, QUICK)
    guessed = await answer(writes(Delta("a"), Delta("b")), PROMPT, QUICK)
    assert counted.text == "ab"
    assert counted.figures["tokens_per_s"] > 10 * guessed.figures["tokens_per_s"]
    assert counted.figures["first_token_ms"] >= 10


@pytest.mark.parametrize(
    ("events", "reason"),
    [((), "no text"), ((Usage(0),), "no text"), ((Delta("a"), REFUSED), "full")],
)
async def test_an_answer_that_failed_has_no_figures(events, reason):
    turn = await answer(writes(*events), PROMPT, QUICK)
    assert (turn.failure, turn.figures) == (reason, {})


async def test_one_token_has_no_rate():
    assert set((await answer(writes(Delta("a")), PROMPT, QUICK)).figures) == {"first_token_ms"}


async def test_silence_before_the_first_word_is_not_audible():
    silence = Sound(np.zeros(1_600, np.int16), 16_000)
    figures = (await speak(writes(silence, Sound(loud(100), 16_000)), "hello", QUICK)).figures
    assert figures["first_audible_ms"] >= figures["first_audio_ms"] + 99
    assert figures["real_time_factor"] < 1


@pytest.mark.parametrize(
    ("sounds", "reason"),
    [
        ((), "no audio"),
        ((Sound(np.zeros(160, np.int16), 16_000),), "silence"),
        ((Sound(loud(10), 16_000), REFUSED), "full"),
    ],
)
async def test_speech_that_failed_has_no_figures(sounds, reason):
    turn = await speak(writes(*sounds), "hello", QUICK)
    assert (turn.failure, turn.figures) == (reason, {})


def test_a_player_waits_for_a_piece_that_is_late():
    silence = Sound(np.zeros(1_600, np.int16), 16_000)
    came = [Arrival(1.0, silence), Arrival(3.0, Sound(loud(10), 16_000))]
    assert first_audible_s(came) == pytest.approx(3.0)
    assert first_audible_s([Arrival(1.0, silence), Arrival(1.0, Sound(loud(10), 16_000))]) == pytest.approx(
        1.1
    )
    assert first_audible_s([]) is None


def asked(number):
    """After the end of the question of this number; each has 64 ms."""
    return lambda stream: stream.heard == number * 1_024 and stream.silent > 0


async def test_a_call_measures_every_question():
    agent = Streams(
        [(asked(1), ANSWER), (asked(1), DONE), (asked(2), ANSWER), (asked(2), DONE), (asked(3), DONE)]
    )
    turns = await call(agent, [utterance(), utterance()], QUICK)
    assert [turn.failure for turn in turns] == ["", ""]
    assert all(turn.figures["call_first_audible_ms"] >= turn.figures["call_first_audio_ms"] for turn in turns)


async def test_an_answer_to_half_of_a_question_is_a_cut_off():
    agent = Streams([(begun, ANSWER), (begun, DONE), (asked(1), ANSWER), (asked(1), DONE), (asked(2), DONE)])
    (turn,) = await call(agent, [utterance(ms=64)], QUICK)
    assert (turn.failure, turn.figures) == ("cut off", {})


@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        (REFUSED, ["full"]),
        ([(asked(1), REFUSED)], ["full"]),
        ([(asked(1), ANSWER), (asked(1), DONE)], ["hung up on"]),
        ([(asked(3), DONE)], ["no answer"]),
        ([(asked(1), ANSWER), (asked(3), DONE)], ["no end"]),
        (
            [(asked(1), Sound(np.zeros(160, np.int16), 16_000)), (asked(1), DONE), (asked(3), DONE)],
            ["silence"],
        ),
    ],
)
async def test_a_call_that_broke_ends_with_a_turn_that_failed(script, reasons):
    turns = await call(Streams(script), [utterance()], QUICK)
    assert [turn.failure for turn in turns][-1:] == reasons

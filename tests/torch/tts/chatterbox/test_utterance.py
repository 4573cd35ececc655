"""Utterances: text to audio, bounds, failures and stops."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from chatterbox_fakes import PER_TOKEN, Listener, Rig

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidMessageError,
    ModelUnavailableError,
    OverloadedError,
    SessionIdleError,
    SessionNotFoundError,
    ShuttingDownError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
)
from parley_torch.tts.chatterbox.segments import TokenQueue

TEXT = "Hello there, how are you today?"


async def until(condition):
    async with asyncio.timeout(1_000):
        while not condition():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.001)


async def test_tokens_that_came_together_are_taken_together():
    tokens = TokenQueue()
    for part in ([1, 2], [], [3]):
        tokens.put(np.array(part, np.int32))
    taken, complete = await tokens.get()
    assert (taken.tolist(), complete) == ([1, 2, 3], False)
    waiting = asyncio.create_task(tokens.get())
    await asyncio.sleep(0)
    tokens.end()
    taken, complete = await waiting
    assert (taken.tolist(), complete, tokens.received) == ([], True, 3)


class TestWhole:
    async def test_a_text_is_spoken(self):
        rig = Rig()
        heard = await rig.say(TEXT)
        assert heard.samples == 2 * len(TEXT) * PER_TOKEN
        assert heard.words(TEXT) == TEXT.split()
        tokens = 7 + np.arange(2 * len(TEXT))
        body = len(heard.audio) - 120  # the end is faded
        assert (heard.audio[:body] == np.repeat(tokens + 1, PER_TOKEN)[:body]).all()
        assert heard.audio[-1] == 0
        rig.assert_idle()
        assert not rig.tokens.aborted
        assert not rig.audio.stopped

    async def test_audio_comes_before_all_tokens(self):
        rig = Rig()
        rig.tokens.token_s = 1.0
        speaking, heard = rig.begin(TEXT)
        await heard.first.wait()
        assert rig.tokens.running
        await rig.service.stop("a")
        await speaking

    async def test_every_piece_has_its_span_of_text(self):
        rig = Rig()
        heard = await rig.say(TEXT)
        spans = [(chunk.start_char, chunk.end_char) for chunk, audio in heard.pieces if len(audio)]
        assert spans[0][0] == 0
        assert spans[-1][1] == len(TEXT)
        assert all(start < end for start, end in spans)
        for (_, end), (start, _) in pairwise(spans):
            assert start <= end, "a word under way goes on, and none is left out"

    async def test_the_text_is_normalised_and_spans_are_those_of_the_original(self):
        rig = Rig()
        text = "I have 5 cats [laugh] here."
        heard = await rig.say(text)
        assert rig.tokens.requests[0].text == "I have five cats here."
        assert heard.words(text) == text.split()

    async def test_text_without_words_gives_no_audio(self):
        rig = Rig()
        for text in ("", " ", "...", "[laugh]", "— —"):
            heard = await rig.say(text)
            assert heard.samples == 0
            assert heard.words(text) == text.split()
        assert not rig.tokens.requests
        assert not rig.audio.opened
        rig.assert_idle()

    async def test_an_unknown_voice_is_refused_without_text_too(self):
        rig = Rig()
        with pytest.raises(UnsupportedVoiceError):
            await rig.say("", voice="missing")
        rig.assert_idle()

    async def test_style_reaches_both_models(self):
        rig = Rig()
        heard = await rig.say(
            TEXT, language="en-GB", sample_rate=16_000, exaggeration=0.8, guidance_weight=0.2, seed=3
        )
        request, message = rig.tokens.requests[0], rig.audio.opened[0]
        assert (request.language, request.exaggeration, request.guidance_weight) == ("en", 0.8, 0.2)
        assert (request.sampling.seed, message.seed, message.sample_rate) == (3, 3, 16_000)
        assert {chunk.sample_rate for chunk, _ in heard.pieces} == {16_000}

    async def test_the_same_seed_says_the_same(self):
        rig = Rig()
        first, second = await rig.say(TEXT, seed=5), await rig.say(TEXT, seed=5)
        other = await rig.say(TEXT, seed=6)
        assert (first.audio == second.audio).all()
        assert (first.audio != other.audio).any()
        assert len({request.request_id for request in rig.tokens.requests}) == 3

    async def test_a_long_text_is_cut_after_sentences(self):
        rig = Rig(segment_text=60)
        text = "One sentence is here. Another one follows it. " * 6
        heard = await rig.say(text)
        assert all(len(request.text) <= 60 for request in rig.tokens.requests)
        assert len(rig.tokens.requests) > 3
        assert heard.words(text) == text.split()
        at = [mark.at_sample for mark in heard.marks]
        assert at == sorted(at)

    async def test_endless_speech_is_cut_off(self, caplog):
        rig = Rig(max_tokens=20)
        rig.tokens.reason = "length"
        heard = await rig.say(TEXT)
        assert heard.samples == 20 * PER_TOKEN
        assert heard.words(TEXT) == TEXT.split()
        assert "cut off" in caplog.text


class TestStream:
    async def test_text_in_parts(self):
        rig = Rig()
        parts = ["Hello there, ", "how are you ", "today?"]
        speaking, heard = rig.begin()
        await asyncio.sleep(0)
        assert [len(audio) for _, audio in heard.pieces] == [0], "text may follow"
        position = 0
        for part in parts:
            rig.more(part, position)
            position += len(part)
            await asyncio.sleep(0.3)
        rig.more("", position, final=True)
        await speaking
        assert heard.words("".join(parts)) == "".join(parts).split()
        assert [request.text for request in rig.tokens.requests] == [part.strip() for part in parts]
        assert heard.samples == sum(2 * len(part.strip()) for part in parts) * PER_TOKEN
        rig.assert_idle()

    async def test_synthesis_is_at_most_one_segment_ahead(self):
        rig = Rig()
        rig.audio.step_s = 5.0
        speaking, _ = rig.begin("One segment here.")
        await asyncio.sleep(0)
        rig.more("Two segments here.", 17)
        rig.more("Three segments here.", 35, final=True)
        await until(lambda: len(rig.tokens.requests) == 2 and not rig.tokens.running)
        await asyncio.sleep(2.0)
        assert len(rig.tokens.requests) == 2
        assert rig.audio.most_open == 1
        await speaking
        assert len(rig.tokens.requests) == 3
        assert [message.after_s for message in rig.audio.opened[:1]] == [0.0]

    async def test_later_segments_are_less_urgent(self):
        rig = Rig()
        speaking, _ = rig.begin("A long first segment, so that much is ahead.")
        await asyncio.sleep(0)
        rig.more("And another.", 44, final=True)
        await speaking
        assert rig.audio.opened[0].after_s == 0.0
        assert rig.audio.opened[1].after_s > 1.0

    async def test_tokens_that_overtake_their_utterance(self):
        rig = Rig()
        rig.audio.open_s = 0.5
        heard = await rig.say(TEXT)
        assert heard.samples == 2 * len(TEXT) * PER_TOKEN

    async def test_text_in_the_wrong_place(self):
        rig = Rig()
        speaking, heard = rig.begin("One.")
        await asyncio.sleep(0)
        for first in (0, 3, 5):
            with pytest.raises(InvalidMessageError, match="after 4 char"):
                rig.more("Two.", first)
        rig.more("Two.", 4, final=True)
        with pytest.raises(InvalidMessageError, match="after the end"):
            rig.more("Three.", 8)
        await speaking
        assert heard.words("One.Two.") == ["One.", "Two."]
        with pytest.raises(SessionNotFoundError):
            rig.more("Four.", 8)

    async def test_too_long_without_text(self):
        rig = Rig(idle_s=3.0)
        speaking, heard = rig.begin("Hello.")
        with pytest.raises(SessionIdleError):
            await speaking
        assert heard.samples == 12 * PER_TOKEN
        rig.assert_idle()


class TestBounds:
    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"request_id": ""}, InvalidMessageError),
            ({"text": "a" * 101}, InvalidMessageError),
            ({"seed": -1}, InvalidMessageError),
            ({"seed": 2**31}, InvalidMessageError),
            ({"exaggeration": 2.1}, InvalidMessageError),
            ({"exaggeration": float("nan")}, InvalidMessageError),
            ({"guidance_weight": -0.1}, InvalidMessageError),
            ({"sample_rate": 4_000}, UnsupportedSampleRateError),
            ({"sample_rate": 96_000}, UnsupportedSampleRateError),
            ({"voice": "missing"}, UnsupportedVoiceError),
        ],
    )
    async def test_bad_requests(self, fields, error):
        rig = Rig(max_text=100)
        with pytest.raises(error):
            await rig.say(**{"text": TEXT, **fields})
        assert not rig.tokens.requests
        rig.assert_idle()
        assert (await rig.say(TEXT)).samples

    async def test_too_many_utterances(self):
        rig = Rig(max_utterances=2)
        tasks = [asyncio.create_task(rig.say(TEXT, request_id=str(n))) for n in range(3)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, OverloadedError) for result in results] == [False, False, True]

    async def test_background_leaves_places_and_has_a_lower_priority(self):
        rig = Rig(max_utterances=4)
        tasks = [asyncio.create_task(rig.say(TEXT, request_id=f"{n}", background=n < 4)) for n in range(5)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, OverloadedError) for result in results] == [False] * 3 + [True, False]
        of_call = [one for one in rig.tokens.requests if one.request_id.startswith("4-")]
        assert of_call
        assert all(one.background != (one in of_call) for one in rig.tokens.requests)

    async def test_an_id_in_use(self):
        rig = Rig()
        speaking, _ = rig.begin()
        await asyncio.sleep(0)
        with pytest.raises(InvalidMessageError, match="in use"):
            await rig.say(TEXT)
        await rig.service.stop("a")
        await speaking

    async def test_too_much_text_is_refused_and_the_rest_spoken(self):
        rig = Rig(max_waiting=2, max_utterance_text=60)
        rig.audio.step_s = 1.0
        speaking, heard = rig.begin("One.")
        await until(lambda: rig.tokens.requests)
        rig.more("Two.", 4)
        rig.more("Six.", 8)
        await until(lambda: len(rig.tokens.requests) == 2)
        # One is rendered, two has its tokens, six waits; there is room for one more.
        await asyncio.sleep(0.1)
        rig.more("Ten.", 12)
        with pytest.raises(OverloadedError):
            rig.more("Eleven.", 16)
        with pytest.raises(InvalidMessageError, match="60"):
            rig.more("a" * 50, 16)
        await until(lambda: len(rig.tokens.requests) == 4)
        rig.more("End.", 16, final=True)
        await speaking
        text = "One.Two.Six.Ten.End."
        assert heard.words(text) == ["One.", "Two.", "Six.", "Ten.", "End."]


def fails(part, failure):
    """Let T3 or S3Gen fail during the next utterance."""
    return lambda rig: getattr(rig, part).failures.append(failure)


def hangs(part, name, value):
    return lambda rig: setattr(getattr(rig, part), name, value)


class TestFailures:
    @pytest.mark.parametrize(
        ("break_rig", "limits", "error", "match"),
        [
            (fails("tokens", ModelUnavailableError("gone")), {}, ModelUnavailableError, "gone"),
            (fails("audio", InferenceError("boom")), {}, InferenceError, "boom"),
            (fails("audio", ZeroDivisionError("a mistake")), {}, ZeroDivisionError, "mistake"),
            (hangs("audio", "ends_early", True), {}, InferenceError, "before its last audio"),
            (hangs("tokens", "hang", True), {"tokens_s": 2.0}, DeadlineExceededError, "t3"),
            (hangs("audio", "step_s", 100.0), {"audio_s": 2.0}, DeadlineExceededError, "s3gen"),
            (hangs("audio", "open_s", 1_000.0), {"push_s": 1.0}, DeadlineExceededError, "s3gen"),
            (hangs("voices", "delay_s", 100.0), {"voice_s": 1.0}, DeadlineExceededError, "voices"),
        ],
    )
    async def test_failure_of_a_part_is_raised(self, break_rig, limits, error, match):
        rig = Rig(**limits)
        break_rig(rig)
        with pytest.raises(error, match=match):
            await rig.say(TEXT)
        rig.assert_idle()

    async def test_failure_of_s3gen_aborts_t3(self):
        rig = Rig()
        rig.tokens.token_s = 0.1
        rig.audio.failures.append(InferenceError("boom"))
        with pytest.raises(InferenceError, match="boom"):
            await rig.say(TEXT)
        rig.assert_idle()
        assert rig.tokens.aborted

    async def test_an_abort_by_another_client(self):
        rig = Rig()
        rig.tokens.token_s = 0.1
        speaking, _ = rig.begin(TEXT)
        await until(lambda: rig.tokens.requests)
        await rig.tokens.abort(rig.tokens.requests[0].request_id)
        with pytest.raises(InferenceError, match="another client"):
            await speaking
        rig.assert_idle()


class TestDefaultVoice:
    async def test_a_missing_one_is_logged_at_the_start(self, caplog):
        rig = Rig()
        await rig.service.check_default_voice()
        assert not caplog.records
        rig.service._default_voice = "anna"
        await rig.service.check_default_voice()
        (record,) = caplog.records
        assert "there is no voice 'anna'. Enroll one with `parley voices enroll --id anna`" in record.message

    async def test_a_store_that_hangs_does_not_hold_the_start_up(self, caplog):
        rig = Rig(voice_s=1.0)
        rig.voices.delay_s = 100.0
        await rig.service.check_default_voice()
        assert "does not answer within 1 s" in caplog.text


class TestStopping:
    @pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.0015, 0.01, 0.03, 0.1, 0.3, 0.4])
    async def test_at_any_time(self, after_s):
        rig = Rig()
        rig.voices.delay_s = 0.001
        speaking, heard = rig.begin(TEXT)
        await asyncio.sleep(after_s)
        await rig.service.stop("a")
        before = len(heard.pieces)
        await asyncio.sleep(0)
        assert speaking.done()
        assert speaking.result() is None
        rig.assert_idle()
        await asyncio.sleep(10.0)
        assert len(heard.pieces) == before

    async def test_before_the_request(self):
        rig = Rig()
        await rig.service.stop("b")
        await rig.service.stop("a")
        assert (await rig.say(TEXT)).pieces == []
        assert not rig.tokens.requests
        assert (await rig.say(TEXT)).samples, "only once"

    async def test_a_cancelled_request(self):
        rig = Rig()
        rig.tokens.token_s = 0.1
        speaking, heard = rig.begin(TEXT)
        await heard.first.wait()
        speaking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await speaking
        rig.assert_idle()
        assert rig.tokens.aborted
        assert rig.audio.stopped

    async def test_a_client_that_cancelled(self):
        rig = Rig()
        rig.tokens.token_s = 0.1
        heard = await rig.say(TEXT, listener=Listener(room=2))
        assert len(heard.pieces) == 2
        rig.assert_idle()

    async def test_a_model_that_does_not_confirm(self):
        rig = Rig(stop_s=1.0)
        rig.tokens.token_s = 0.1
        rig.tokens.abort_s = 100.0
        speaking, heard = rig.begin(TEXT)
        await heard.first.wait()
        async with asyncio.timeout(1.5):
            await rig.service.stop("a")
        await speaking
        assert rig.audio.stopped
        assert len(rig.service) == 0

    async def test_the_server_stops(self):
        rig = Rig()
        rig.tokens.token_s = 0.1
        tasks = [rig.begin(TEXT, request_id=str(n)) for n in range(3)]
        for _, heard in tasks:
            await heard.first.wait()
        await rig.service.close()
        for task, _ in tasks:
            with pytest.raises(ShuttingDownError):
                await task
        with pytest.raises(ShuttingDownError):
            await rig.say(TEXT)
        rig.assert_idle()

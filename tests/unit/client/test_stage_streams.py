"""The language model and the synthesizers as stages."""

import asyncio
import socket

import grpc.aio
import numpy as np
import pytest
from fake_models import Chat, Voice, serving_models

from parley.chat import ChatMessage
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    InvalidMessageError,
    ModelUnavailableError,
    SessionIdleError,
    UnsupportedVoiceError,
)
from parley.llm.messages import Completed, Sampling, TextDelta
from parley.protocol import Tool
from parley.tts.messages import SpeechChunk, WordMark
from parley_client import CallEndedError
from parley_client.errors import ConnectError
from parley_stages import Generation, Synthesis, WordTiming
from parley_stages.server import LazyServer


async def test_first_callers_share_the_connection():
    async with serving_models() as (fake, _):
        lazy = LazyServer(fake.address)
        first, second = await asyncio.gather(lazy.get(), lazy.get())
        assert first is second
        await lazy.close()
        assert first.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        assert (await lazy.get()) is not first
        await lazy.close()


async def test_a_failure_is_forgotten():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    lazy = LazyServer(address)
    with pytest.raises(ConnectError):
        await lazy.get()
    server = grpc.aio.server()
    server.add_insecure_port(address)
    await server.start()
    try:
        assert (await lazy.get()).channel is not None
    finally:
        await lazy.close()
        await server.stop(None)


HELLO = [ChatMessage(role="user", content="Hello")]
DONE = Completed(finish_reason="stop", prompt_tokens=1, completion_tokens=2)
RATE = 16_000


async def test_an_answer(fake, server):
    Chat(fake, DONE)
    tool = Tool(name="f", description="d", parameters={"type": "object"})
    async with Generation(server) as chat:
        answer = chat.answer(HELLO, tools=[tool], sampling=Sampling(temperature=0.5, seed=3))
        assert [event async for event in answer] == [TextDelta(text="one"), TextDelta(text="two"), DONE]
    (asked,) = fake.asked
    assert asked["messages"] == [{"role": "user", "content": "Hello"}]
    assert (asked["sampling"]["seed"], asked["tools"][0]["name"]) == (3, "f")


async def test_an_answer_that_is_left_is_stopped(fake, server):
    model = Chat(fake)
    async with Generation(server) as chat:
        async with chat.answer(HELLO) as answer:
            assert await anext(answer) == TextDelta(text="one")
        await model.aborted.wait()
    assert fake.aborted() == [fake.asked[0]["request_id"]]


async def test_a_reader_that_is_cancelled_stops_the_model(fake, server):
    model = Chat(fake)

    async def read(answer):
        return [event async for event in answer]

    async with Generation(server) as chat:
        answer = chat.answer(HELLO)
        assert await anext(answer) == TextDelta(text="one")
        reading = asyncio.create_task(read(answer))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await model.aborted.wait()


async def test_usage_comes_behind_an_abort(fake, server):
    Chat(fake)
    async with Generation(server) as chat:
        answer = chat.answer(HELLO)
        assert await anext(answer) == TextDelta(text="one")
        await answer.abort()
        assert [event async for event in answer] == [TextDelta(text="two"), Completed(finish_reason="abort")]


async def test_answers_of_one_stage_share_the_prefix_cache(fake, server):
    salts = []
    for salt in ("", "", "ann"):
        fake.asked.clear()
        async with Generation(server, cache_salt=salt) as chat:
            for _ in range(2):
                Chat(fake, last=Completed(finish_reason="stop"))
                _ = [event async for event in chat.answer(HELLO)]
        assert len({asked["cache_salt"] for asked in fake.asked}) == 1
        salts.append(fake.asked[0]["cache_salt"])
    assert salts[2] == "ann"
    assert len({"", *salts}) == 4


async def test_another_task_may_stop_an_answer(fake, server):
    Chat(fake)
    async with Generation(server) as chat:
        answer = chat.answer(HELLO)
        events = [await anext(answer), await anext(answer)]
        rest = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)
        await answer.abort()
        assert events == [TextDelta(text="one"), TextDelta(text="two")]
        assert await rest == Completed(finish_reason="abort")
        with pytest.raises(StopAsyncIteration):
            await anext(answer)


async def test_closing_the_stage_stops_its_answers(fake, server):
    model = Chat(fake)
    async with Generation(server) as chat:
        answer = chat.answer(HELLO)
        await anext(answer)
    assert model.aborted.is_set()


async def test_answer_without_a_reader_is_not_requested(fake, server):
    Chat(fake)
    async with Generation(server) as chat, chat.answer(HELLO):
        pass
    assert fake.asked == []


async def test_silent_model_is_aborted(fake, server):
    model = Chat(fake)
    async with Generation(server, timeout_s=0.05) as chat:
        with pytest.raises(DeadlineExceededError):
            _ = [event async for event in chat.answer(HELLO)]
        await model.aborted.wait()


async def test_failures_keep_their_kind(fake, server):
    async with Generation(server) as chat:
        Chat(fake, "context_too_long: 9000 tokens")
        with pytest.raises(ContextTooLongError, match="9000"):
            _ = [event async for event in chat.answer(HELLO)]
        assert fake.aborted() == []  # there is nothing to stop
        Chat(fake, TextDelta(text="three"))
        with pytest.raises(InferenceError, match="without completing"):
            _ = [event async for event in chat.answer(HELLO)]
        await fake.stop()
        with pytest.raises(ModelUnavailableError):
            _ = [event async for event in chat.answer(HELLO)]


def heard(pieces):
    """The text that can be heard, after checking that the pieces describe themselves."""
    offset = 0
    for piece in pieces:
        assert piece.offset == offset
        offset += len(piece.samples)
    return "".join(chr(sample) for sample in np.concatenate([piece.samples for piece in pieces])[::2])


async def test_a_text_is_spoken_in_segments_as_one_stream(fake, server):
    voice = Voice(fake)
    text = "Hello there. How are you, Dr. Who?  Fine!"
    async with Synthesis(server) as synthesis, synthesis.speak(text, voice="man-2", language="de") as speech:
        pieces = [piece async for piece in speech]
    assert voice.spoken == ["Hello there.", "How are you, Dr. Who?", "Fine!"]
    assert heard(pieces) == "Hello there.How are you, Dr. Who?Fine!"
    words = [word for piece in pieces for word in piece.words]
    assert [word.text for word in words] == text.split()
    assert [text[word.start_char : word.end_char] for word in words] == text.split()
    audio = np.concatenate([piece.samples for piece in pieces])
    assert [chr(audio[word.at_sample]) for word in words] == [word[0] for word in text.split()]
    assert {(asked["voice"], asked["language"]) for asked in fake.asked} == {("man-2", "de")}
    assert len({asked["request_id"] for asked in fake.asked}) == 3


async def test_markdown_is_not_spoken_and_words_keep_their_places(fake, server):
    voice = Voice(fake)
    text = "See [our **hours**](https://example.com/a), *now*. 😀 ~~Bye~~!"
    async with Synthesis(server) as synthesis, synthesis.speak(text) as speech:
        pieces = [piece async for piece in speech]
    words = [word for piece in pieces for word in piece.words]
    assert voice.spoken == ["See our hours,", "now.", "Bye!"]
    assert [word.text for word in words] == ["See", "our", "hours,", "now.", "Bye!"]
    places = [text[word.start_char : word.end_char] for word in words]
    assert places == ["See", "our", "hours**](https://example.com/a),", "now*.", "Bye~~!"]


async def test_a_text_is_spoken_while_it_is_being_written(fake, server):
    Voice(fake)
    async with Synthesis(server) as synthesis:
        speech = synthesis.begin()
        speech.add("Hello there. How")
        pieces = [await anext(speech), await anext(speech)]
        assert heard(pieces) == "Hello there."
        rest = asyncio.ensure_future(anext(speech))
        await asyncio.sleep(0)
        speech.add(" are you")
        assert not rest.done()
        speech.finish()
        pieces += [await rest, *[piece async for piece in speech]]
        assert heard(pieces) == "Hello there.How are you"
        assert pieces[2].words == (WordTiming("How", 13, 16, 24), WordTiming("are", 17, 20, 32))
        assert speech.text == "Hello there. How are you"
        with pytest.raises(CallEndedError):
            speech.add("more")


async def test_audio_comes_at_the_rate_that_was_asked_for(fake, server):
    Voice(fake, rate=8_000)
    text = "aaaaaaaaaa " * 200
    async with Synthesis(server) as synthesis:
        pieces = [piece async for piece in synthesis.speak(text, sample_rate=24_000)]
    spoken = sum(2 * len(part) for part in (asked["text"] for asked in fake.asked))
    assert {piece.sample_rate for piece in pieces} == {24_000}
    assert sum(len(piece.samples) for piece in pieces) == 3 * spoken
    assert pieces[-1].offset + len(pieces[-1].samples) == 3 * spoken


async def test_speech_that_is_left_is_stopped(fake, server):
    voice = Voice(fake)
    voice.hold.clear()
    async with Synthesis(server) as synthesis:
        async with synthesis.speak("Hello there. How are you?") as speech:
            await anext(speech)
        await voice.aborted.wait()
    assert voice.spoken == ["Hello there."]
    assert fake.aborted() == [fake.asked[0]["request_id"]]


async def test_another_task_may_stop_speech_that_waits_for_text(fake, server):
    Voice(fake)
    async with Synthesis(server) as synthesis:
        speech = synthesis.begin()
        waiting = asyncio.ensure_future(anext(speech))
        await asyncio.sleep(0)
        await speech.abort()
        with pytest.raises(StopAsyncIteration):
            await waiting
    assert fake.asked == []


async def test_text_that_does_not_come_ends_the_speech(fake, server):
    Voice(fake)
    async with Synthesis(server, idle_s=0.01) as synthesis, synthesis.begin() as speech:
        speech.add("Hello")
        with pytest.raises(SessionIdleError):
            await anext(speech)


async def test_too_long_a_text_is_refused(server):
    async with Synthesis(server) as synthesis:
        with pytest.raises(InvalidMessageError):
            synthesis.speak("a" * 20_001)
        assert [piece async for piece in synthesis.speak(" ... ")] == []
    with pytest.raises(InvalidInputError, match="no synthesizer 'parrot'"):
        Synthesis(server, model="parrot")


async def test_voices_of_espeak_are_known(server):
    async with Synthesis(server) as synthesis:
        voices = await synthesis.voices()
    assert voices[0].voice_id == "man-1"
    assert "en" in voices[0].languages


async def test_voices_of_all_synthesizers_of_the_conversations(fake, server):
    fake.agent_tts, fake.ready = "piper-of-another-day, kokoro,espeak", {"kokoro", "espeak"}
    async with Synthesis(server) as synthesis:
        voices = await synthesis.voices()
        assert [voice.voice_id for voice in voices][:2] == ["af_heart", "af_alloy"]
        assert {voice.synthesizer for voice in voices} == {"kokoro", "espeak"}
        assert (voices[0].gender, voices[0].languages) == ("female", ("en", "en-us"))
        assert await synthesis.synthesizer_of("man-1") == "espeak"
        assert await synthesis.synthesizer_of(None, "de") == "espeak"
        assert {"en-gb", "de"} <= set(await synthesis.languages())


@pytest.mark.parametrize(
    ("configured", "ready", "voice", "asked"),
    [
        ("kokoro,espeak", {"kokoro", "espeak"}, None, ("kokoro", None)),
        ("kokoro,espeak", {"kokoro", "espeak"}, "bm_george", ("kokoro", "bm_george")),
        ("kokoro,espeak", {"kokoro", "espeak"}, "espeak/woman-1", ("espeak", "woman-1")),
        ("kokoro,espeak", {"espeak"}, None, ("espeak", None)),
        ("kokoro,espeak", set(), None, ("kokoro", None)),
        (None, set(), None, ("espeak", None)),
    ],
)
async def test_the_synthesizer_that_has_the_voice_is_asked(fake, server, configured, ready, voice, asked):  # noqa: PLR0917 - a row
    Voice(fake)
    fake.agent_tts, fake.ready = configured, ready
    async with Synthesis(server) as synthesis:
        assert [piece async for piece in synthesis.speak("Hello there.", voice=voice)]
    assert (fake.asked_models, fake.asked[0].get("voice")) == ([asked[0]], asked[1])


async def test_unknown_voice_is_refused_before_a_request(fake, server):
    Voice(fake)
    async with Synthesis(server, model="kokoro") as synthesis:
        with pytest.raises(UnsupportedVoiceError, match="af_heart"):
            _ = [piece async for piece in synthesis.speak("Hello.", voice="man-1")]
        with pytest.raises(UnsupportedVoiceError):
            await synthesis.check_voice("man-1")
        await synthesis.check_voice("kokoro/bf_emma")
    assert fake.asked == []


async def test_list_of_voices_has_each_voice_once(server):
    for wrong in ("espeak,espeak", "espeak,", "", "auto,espeak"):
        with pytest.raises(InvalidInputError):
            Synthesis(server, model=wrong)


class Writer:
    """A synthesizer that takes text while it is written: says how many characters each piece had."""

    def __init__(self, fake):
        self.pieces = asyncio.Queue()
        self.refusals = ["overloaded: enough"]
        fake.answer = self.answer

    async def answer(self, message):
        if message["op"] == "more":
            if self.refusals:
                yield self.refusals.pop()
                return
            self.pieces.put_nowait(message)
        elif message["op"] == "abort":
            self.pieces.put_nowait(None)
        else:
            yield {"CHUNK": SpeechChunk(sample_rate=RATE, offset=0), "AUDIO": []}
            offset = 0
            while (more := await self.pieces.get()) is not None:
                mark = WordMark(start_char=more["first"], end_char=more["first"] + 1, at_sample=offset)
                yield {
                    "CHUNK": SpeechChunk(sample_rate=RATE, offset=offset, words=[mark]),
                    "AUDIO": [len(more["text"])],
                }
                offset += 1
                if more["final"]:
                    return


async def test_chatterbox_is_given_text_while_it_is_written(fake, server):
    Writer(fake)
    async with Synthesis(server, model="chatterbox") as synthesis:
        speech = synthesis.begin(voice="anna", seed=1)
        speech.add("Hello there. How")
        pieces = [await anext(speech)]
        speech.add(" are you")
        speech.finish()
        pieces += [piece async for piece in speech]
    assert [piece.samples.tolist() for piece in pieces] == [[12], [12], [0]]
    assert [word.text for piece in pieces for word in piece.words] == ["H", " ", ""]
    opened, *more = fake.asked
    assert (opened["voice"], opened["seed"], opened["final"]) == ("anna", 1, False)
    texts = [message["text"] for message in more if message["op"] == "more"]
    assert texts == ["Hello there.", "Hello there.", " How are you", ""]  # the first was refused once


async def test_chatterbox_is_stopped(fake, server):
    Writer(fake)
    async with Synthesis(server, model="chatterbox") as synthesis, synthesis.begin() as speech:
        speech.add("Hello there. How")
        await anext(speech)
    assert fake.aborted() == [fake.asked[0]["request_id"]]


async def test_a_writer_that_fails_does_not_leave_the_model_waiting(fake, server):
    writer = Writer(fake)
    writer.refusals = ["invalid_message: no such words"]
    async with Synthesis(server, model="chatterbox") as synthesis:
        with pytest.raises(InvalidMessageError, match="no such words"):
            _ = [piece async for piece in synthesis.speak("Hello there.")]

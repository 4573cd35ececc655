import threading

import numpy as np
import pytest

from parley.errors import (
    InferenceError,
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.tts.espeak import EspeakSynthesizer, pause_after
from parley.tts.espeak_library import WordEvent
from parley.tts.messages import SpeakRequest
from parley.tts.requests import MAX_TEXT
from parley.tts.text import is_speakable, plain_text

RATE = 1000
BUFFER = np.ones(50, np.int16)  # 50 ms


class Library:
    """Speaks one buffer per word; ``gate`` holds it before every buffer."""

    sample_rate = RATE

    def __init__(self):
        self.gate = threading.Semaphore(1000)
        self.spoken = []
        self.voices = []
        self.closed = False
        self.failure = None

    def set_voice(self, identifier):
        self.voices.append(identifier)
        return "fr" not in identifier

    def speak(self, text, on_audio):
        self.spoken.append(text)
        position = 0
        for index, word in enumerate(text.split()):
            assert self.gate.acquire(timeout=10)
            if self.failure:
                raise self.failure
            if not on_audio(BUFFER, [WordEvent(position, index * 50)]):
                return
            position += len(word) + 1
        on_audio(np.empty(0, np.int16), [])

    def close(self):
        self.closed = True


class Sink:
    def __init__(self, room=1000):
        self.chunks = []
        self.error = None
        self.ended = threading.Event()
        self.first = threading.Event()
        self.room = room
        self.ends = 0
        self.begun = 0

    wanted = True

    def on_begun(self):
        self.begun += 1

    def send(self, chunk, audio):
        if len(self.chunks) >= self.room:
            return False
        self.chunks.append((chunk, audio))
        self.first.set()
        return True

    def finish(self):
        self.ends += 1
        self.ended.set()

    def fail(self, error):
        self.error = self.error or error
        self.finish()

    def wait(self):
        assert self.ended.wait(5), "the request was not ended"
        return self

    @property
    def samples(self):
        return sum(len(audio) for _, audio in self.chunks)


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def speaker(library):
    speaker = EspeakSynthesizer(library, max_requests=3)
    yield speaker
    for _ in range(100):
        library.gate.release()
    speaker.close()
    assert library.closed


def speak(speaker, text, request_id="r", sink=None, **options):
    sink = sink or Sink()
    speaker.submit(SpeakRequest(request_id=request_id, text=text, **options), sink)
    return sink


def test_the_first_buffer_goes_out_alone_the_rest_in_larger_chunks(speaker):
    sink = speak(speaker, "one two three four five six").wait()
    assert [len(audio) for _, audio in sink.chunks] == [50, 200, 50]
    assert [chunk.offset for chunk, _ in sink.chunks] == [0, 50, 250]
    assert {chunk.sample_rate for chunk, _ in sink.chunks} == {RATE}
    assert (sink.begun, sink.ends) == (1, 1)


class Unstartable(Sink):
    def on_begun(self):
        raise OSError("no room for metrics")


def test_request_whose_begin_cannot_be_reported_ends_with_an_error(speaker):
    sink = speak(speaker, "one", sink=Unstartable()).wait()
    assert "no room for metrics" in str(sink.error)
    assert speak(speaker, "two", request_id="next").wait().error is None


def test_marks_come_with_the_chunk_in_which_they_begin(speaker):
    text = "one two three four five six"
    sink = speak(speaker, text).wait()
    words = [[text[w.start_char : w.end_char] for w in chunk.words] for chunk, _ in sink.chunks]
    assert words == [["one"], ["two", "three", "four", "five"], ["six"]]
    for chunk, audio in sink.chunks:
        assert all(chunk.offset <= w.at_sample < chunk.offset + len(audio) for w in chunk.words)


@pytest.mark.parametrize(
    ("language", "spoken"),
    [("en", "it is minus $20.50 (minus 5) x-1 or 10-5"), ("es", "it is menos $20.50 (menos 5) x-1 or 10-5")],
)
def test_negative_numbers_have_a_word_for_their_sign(speaker, library, language, spoken):
    text = "it is -$20.50 (\u22125) x-1 or 10-5"
    sink = speak(speaker, text, language=language).wait()
    assert library.spoken == [spoken]
    words = [text[w.start_char : w.end_char] for chunk, _ in sink.chunks for w in chunk.words]
    assert words == text.split()


def test_a_sentence_is_followed_by_a_pause(speaker):
    sink = speak(speaker, "one.").wait()
    assert sink.samples == 50 + 300
    assert not sink.chunks[-1][1].any()


def test_text_without_anything_to_say(speaker, library):
    for text in ("", "  \n", "...", "?! -"):
        sink = speak(speaker, text).wait()
        assert (sink.chunks, sink.error) == ([], None)
    assert library.spoken == []


def test_voice_and_language(speaker, library):
    speak(speaker, "a").wait()
    speak(speaker, "b", voice="woman-1", language="de").wait()
    speak(speaker, "c", voice="woman-1", language="DE").wait()
    assert library.voices == ["gmw/en-US", "gmw/de+f2"]


@pytest.mark.parametrize(
    ("request_fields", "error"),
    [
        ({"text": "a", "voice": "missing"}, UnsupportedVoiceError),
        ({"text": "a", "language": "xx"}, UnsupportedLanguageError),
        ({"text": "a" * (MAX_TEXT + 1)}, InvalidMessageError),
        ({"text": "a", "request_id": ""}, InvalidMessageError),
        ({"text": "a", "final": False}, InvalidMessageError),
        ({"text": "a", "language": "fr"}, ParleyError),  # the library lacks the file
    ],
)
def test_requests_that_cannot_be_served(speaker, request_fields, error):
    assert type(speak(speaker, **request_fields).wait().error) is error
    assert speak(speaker, "fine", "next").wait().error is None


def test_failures_end_their_request_only(speaker, library):
    library.failure = InferenceError("status 1")
    assert isinstance(speak(speaker, "a").wait().error, InferenceError)
    library.failure = KeyError("x")
    assert speak(speaker, "a").wait().error.code == "internal_error"
    library.failure = None
    assert speak(speaker, "a").wait().error is None


class TestOneAtATime:
    @pytest.fixture(autouse=True)
    def held(self, library):
        library.gate = threading.Semaphore(0)

    def start(self, speaker, library, request_id="r", words=20):
        sink = speak(speaker, "word " * words, request_id)
        library.gate.release()
        assert sink.first.wait(5)
        return sink

    def test_abort_within_one_buffer(self, speaker, library):
        sink = self.start(speaker, library)
        speaker.abort("r")
        library.gate.release()
        sink.wait()
        assert sink.error is None
        assert sink.samples == 50

    def test_abort_while_waiting(self, speaker, library):
        self.start(speaker, library, "running", words=1).wait()
        running = self.start(speaker, library, "running", words=2)
        waiting = speak(speaker, "never said", "waiting")
        speaker.abort("waiting")
        library.gate.release()
        running.wait()
        assert waiting.wait().chunks == []
        assert "never said" not in library.spoken

    def test_abort_before_the_request(self, speaker, library):
        speaker.abort("r")
        assert speak(speaker, "a").wait().chunks == []
        library.gate.release()
        assert len(speak(speaker, "a").wait().chunks) == 1

    def test_an_id_in_use_is_refused(self, speaker, library):
        first = self.start(speaker, library, words=2)
        assert isinstance(speak(speaker, "again").wait().error, InvalidMessageError)
        library.gate.release()
        assert first.wait().error is None

    def test_a_full_queue_refuses(self, speaker, library):
        self.start(speaker, library, "running")
        for n in range(2):
            speak(speaker, "a", f"waiting-{n}")
        assert isinstance(speak(speaker, "a", "more").wait().error, OverloadedError)

    def test_calls_are_spoken_before_the_background(self, library):
        speaker = EspeakSynthesizer(library, max_requests=8)
        self.start(speaker, library, "running", words=1)
        names = ["bulk-0", "bulk-1", "call-0", "bulk-2", "call-1"]
        sinks = [speak(speaker, name, name, background="bulk" in name) for name in names]
        for _ in range(20):
            library.gate.release()
        for sink in sinks:
            sink.wait()
        assert library.spoken[-5:] == ["call-0", "call-1", "bulk-0", "bulk-1", "bulk-2"]
        speaker.close()

    def test_the_background_leaves_places_for_calls(self, library):
        speaker = EspeakSynthesizer(library, max_requests=4)
        self.start(speaker, library, "running")
        for number in range(2):
            speak(speaker, "a", f"bulk-{number}", background=True)
        assert isinstance(speak(speaker, "a", "bulk", background=True).wait().error, OverloadedError)
        call = speak(speaker, "a", "call")
        assert call.error is None
        for _ in range(100):
            library.gate.release()
        assert call.wait().error is None
        speaker.close()

    def test_a_sink_that_refuses_audio_stops_its_request(self, speaker, library):
        sink = speak(speaker, "word " * 20, sink=Sink(room=0))
        library.gate.release()
        sink.wait()
        assert sink.chunks == []

    def test_close_fails_what_runs_and_waits(self, library):
        speaker = EspeakSynthesizer(library, max_requests=2)
        sinks = [self.start(speaker, library), speak(speaker, "a", "waiting")]
        library.gate.release()
        library.gate.release()
        speaker.close()
        assert [type(sink.wait().error) for sink in sinks] == [ShuttingDownError] * 2
        assert isinstance(speak(speaker, "a", "late").wait().error, ShuttingDownError)
        assert library.closed


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a\tb\nc\0d", "a b c d"),
        ("\x01100S fast", " 100S fast"),
        ("[[h@l'oU]] <b>x</b> &amp;", "[[h@l'oU]] <b>x</b> &amp;"),
        ("\ud800!", " !"),
        ("Zürich 😀", "Zürich 😀"),
    ],
)
def test_plain_text_keeps_its_length(text, plain):
    assert plain_text(text) == plain
    assert len(plain_text(text)) == len(text)


@pytest.mark.parametrize(
    ("text", "pause"),
    [("Yes.", 300), ('He said "no!" ', 300), ("One,", 150), ("so:", 200), ("and", 0), ("", 0)],
)
def test_pauses(text, pause):
    assert pause_after(text) == pause


def test_speakable():
    assert all(map(is_speakable, ("a", "5", "$", "é", "你", "😀")))
    assert not any(map(is_speakable, ("", " ", "...", "—", "¿?", "()")))


def test_a_request_that_cannot_be_ended_does_not_stop_the_others(speaker, library, caplog):
    class Broken(Sink):
        def fail(self, error):
            super().fail(error)
            raise OSError("no shared memory")

    library.failure = InferenceError("no")
    broken = Broken()
    speaker.submit(SpeakRequest(request_id="a", text="one"), broken)
    broken.wait()
    library.failure = None
    sink = Sink()
    speaker.submit(SpeakRequest(request_id="b", text="two"), sink)
    assert sink.wait().samples
    assert "could not be ended" in caplog.text

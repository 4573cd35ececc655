"""The shipped networks on real recordings, against an independent implementation and the truth."""

import numpy as np
import onnx_asr
import pytest
from local_models import Transcriber

from parley.asr.decoding.words import text_of
from parley.asr.messages import AsrOptions, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.asr.parakeet.pipeline import OfflinePipeline
from parley.asr.parakeet.stream import StreamLimits
from parley.asr.service import ChunkRequest

TAIL = np.zeros(8000, np.int16)


@pytest.fixture(scope="module")
def transcriber(export):
    return Transcriber(export.folder)


@pytest.fixture(scope="module")
def transcripts(transcriber, clips):
    return [transcriber.words(clip.audio) for clip in clips]


def test_an_independent_decoder_writes_the_same(export, clips, transcripts):
    reference = onnx_asr.load_model("nemo-conformer-tdt", export.folder)
    expected = [
        reference.recognize(clip.audio.astype(np.float32) / np.float32(32768), sample_rate=16_000)
        for clip in clips
    ]
    assert [text_of(words) for words in transcripts] == [text.strip() for text in expected]


def test_words_follow_each_other_within_the_recording(clips, transcripts):
    for clip, words in zip(clips, transcripts, strict=True):
        times = [time for word in words for time in (word.start_ms, word.end_ms)]
        # A token's duration may reach a little into the next one's frames, and past the end.
        assert [word.start_ms for word in words] == sorted(word.start_ms for word in words)
        assert all(0 <= time <= len(clip.audio) / 16 + 320 for time in times)
        assert all(0.0 <= word.confidence <= 1.0 for word in words)


def recognize(export, models, audio, chunk, **options):
    pipeline = OfflinePipeline(export, models, StreamLimits())
    stream, events = pipeline.new_stream(AsrOptions(**options)), []
    for start in range(0, len(audio), chunk):
        (result,) = pipeline.step([ChunkRequest(stream, audio[start : start + chunk])])
        stream = result.stream
        events += result.reply.events
    return events


def test_every_recording_is_one_utterance_with_a_start_an_end_and_a_text(export, models, spoken):
    wrong = 0
    for clip in spoken:
        events = recognize(
            export, models, np.concatenate([TAIL, clip.audio, TAIL]), 1280, partial_interval_ms=0
        )
        started = [event for event in events if isinstance(event, SpeechStartedEvent)]
        stopped = [event for event in events if isinstance(event, SpeechStoppedEvent)]
        finals = [event for event in events if isinstance(event, TranscriptEvent) and event.is_final]
        assert len(started) == len(stopped) == len(finals) > 0, clip
        text = " ".join(event.text for event in finals)
        wrong += len(started) != 1 or text != clip.text
    # Speech with long pauses may be cut, and the recogniser errs now and then.
    assert wrong <= len(spoken) // 5


def test_recordings_without_speech_are_no_utterance(export, models, clips):
    silent = [clip for clip in clips if not clip.text]
    assert silent
    for clip in silent:
        assert recognize(export, models, clip.audio, 1280) == []

"""The shipped streaming networks on every recording of the evaluation."""

import numpy as np
import pytest

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.words import text_of, words_of
from parley.asr.messages import AsrOptions, TranscriptEvent
from parley.asr.service import ChunkRequest
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.final_transcripts import FinalTranscriber, FinalTranscriptPolicy
from parley.asr.streaming.pipeline import StreamingLimits, StreamingPipeline
from parley.asr.streaming.utterance import StreamingUtterance
from parley.launcher.options import ROOT
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder

EXPORT = ROOT / "models" / streaming_checkpoint.DEFAULT
LOOK_AHEADS = {80: 8, 160: 16, 560: 56, 1120: 112}
SECOND = 16_000

pytestmark = pytest.mark.skipif(not EXPORT.is_dir(), reason="its weights are not there")


@pytest.fixture(scope="module")
def streaming():
    return streaming_checkpoint.load(EXPORT)


@pytest.fixture(scope="module")
def recognizer(streaming):
    recognizer, chunks = load_recognizer(
        streaming,
        list(LOOK_AHEADS),
        open_session,
        slots=64,
        audio=20 * SECOND,
    )
    assert chunks == LOOK_AHEADS
    return recognizer


def transcribe(recognizer, checkpoint, recordings, chunk):
    """The texts of whole recordings, without voice activity: all of them in one go."""
    utterances = []
    for audio in recordings:
        utterance = StreamingUtterance(
            1, 0, chunk=chunk, boosting=PhraseAutomaton.nothing(), keep_audio=False
        )
        utterance.slot = recognizer.acquire()
        recognizer.write(utterance, audio)
        utterance.push(audio)
        utterance.ended = True
        utterances.append(utterance)
    recognizer.recognize(utterances)
    for utterance in utterances:
        recognizer.release(utterance.slot)
    return [text_of(words_of(utterance.tokens(), checkpoint)) for utterance in utterances]


@pytest.mark.parametrize("chunk", LOOK_AHEADS.values())
def test_the_last_word_of_no_recording_is_cut_off(streaming, recognizer, clips, chunk):
    """More silence after the end than the one chunk that is put there brings nothing new."""
    assert len(clips) == 60
    longer = [np.append(clip.audio, np.zeros(SECOND + chunk * 160, np.int16)) for clip in clips]
    found = transcribe(recognizer, streaming.checkpoint, [clip.audio for clip in clips], chunk)
    assert found == transcribe(recognizer, streaming.checkpoint, longer, chunk)
    assert all(text for text, clip in zip(found, clips, strict=True) if clip.text)


def test_every_word_is_within_what_voice_activity_lets_through(streaming, recognizer, spoken):
    vad = SileroVad(open_session(bundled_folder() / FILE))
    pipeline = StreamingPipeline(
        streaming.checkpoint,
        recognizer,
        vad,
        FinalTranscriber(FinalTranscriptPolicy("streaming"), None, None, lambda: 0.0),
        chunks=LOOK_AHEADS,
        default_ms=160,
        limits=StreamingLimits(),
    )
    whole = transcribe(recognizer, streaming.checkpoint, [clip.audio for clip in spoken], 16)
    results = pipeline.step(
        [
            ChunkRequest(pipeline.new_stream(AsrOptions()), clip.audio, flush=True, last=True)
            for clip in spoken
        ]
    )
    gated = [
        " ".join(event.text for event in item.reply.events if isinstance(event, TranscriptEvent))
        for item in results
    ]
    assert sum(len(text.split()) for text in gated) >= 0.98 * sum(len(text.split()) for text in whole)
    ends = [
        (one.split()[0], one.split()[-1]) == (other.split()[0], other.split()[-1])
        for one, other in zip(gated, whole, strict=True)
    ]
    # Chunks begin elsewhere, so that a word that is nearly misheard may become another one.
    assert np.mean(ends) >= 0.85

"""The shipped streaming model, read by sherpa-onnx (Kaldi's front end, its own decoding loop)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sherpa_files
import sherpa_onnx
import soundfile
from conftest import CLIPS, ROOT

from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.words import text_of, words_of
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.utterance import StreamingUtterance
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session

MODEL = ROOT / "models/tiny-nemotron-streaming"
RATE = 16_000
# Both must hear the same after the last word: at the very end of its audio each has rules of its own.
SILENCE = np.zeros(RATE // 10, np.int16)
PAST_THE_LAST_FRAME = 160 + 200
"""Samples: it waits for one frame more than it takes, and for the second half of that frame's window."""


@pytest.fixture(scope="module")
def recordings():
    entries = json.loads((CLIPS / "manifest.json").read_text())
    clips = [soundfile.read(CLIPS / entry["file"], dtype="int16")[0] for entry in entries]
    return [np.concatenate([clip, SILENCE]) for clip in clips]


def parleys_texts(look_ahead, clips):
    """The texts of ``nemotron_streaming``, one recording after the other, and the samples of a chunk."""
    export = streaming_checkpoint.load(MODEL)
    wanted = export.look_ahead_ms(look_ahead)
    recognizer, chunks = load_recognizer(export, [wanted], open_session, slots=2, audio=2 * 16 * wanted)
    chunk = chunks[wanted] * export.checkpoint.config.hop_length
    phrases = compile_phrases([], 0.0, export.checkpoint.vocabulary)
    texts = []
    for clip in clips:
        utterance = StreamingUtterance(1, 0, chunk=chunks[wanted], boosting=phrases, keep_audio=False)
        utterance.slot = recognizer.acquire()
        for start in range(0, len(clip), chunk):
            piece = clip[start : start + chunk]
            recognizer.write(utterance, piece)
            utterance.push(piece)
            recognizer.recognize([utterance]).keep([utterance.slot])
        utterance.ended = True
        recognizer.recognize([utterance]).keep([utterance.slot])
        assert utterance.failure is None
        texts.append(text_of(words_of(utterance.tokens(), export.checkpoint)))
        recognizer.release(utterance.slot)
    return texts, chunk


def sherpas_text(recognizer: Any, clip, chunk: int):
    """As many chunks as Parley reads: all of the clip, and one of silence."""
    chunks = -(-len(clip) // chunk) + 1
    audio = np.zeros(sherpa_files.LEAD + chunks * chunk + PAST_THE_LAST_FRAME, np.float32)
    audio[sherpa_files.LEAD :][: len(clip)] = clip / np.float32(32768)
    stream = recognizer.create_stream()
    stream.accept_waveform(RATE, audio)
    read = 0
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
        read += 1
    assert read == chunks
    return recognizer.get_result(stream).strip()


@pytest.mark.parametrize("look_ahead", [0, 1, 6, 13])
def test_sherpa_onnx_writes_the_same_texts(recordings, tmp_path, look_ahead):
    sherpa_files.convert(MODEL, tmp_path, look_ahead)
    recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(
        **{name: str(tmp_path / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")},
        tokens=str(tmp_path / "tokens.txt"),
        num_threads=1,
    )
    ours, chunk = parleys_texts(look_ahead, recordings)
    theirs = [sherpas_text(recognizer, clip, chunk) for clip in recordings]
    assert ours == theirs
    assert len(set(ours)) > 40

"""How exact the times of Moonshine's words are, by Kokoro's own times of what it says.

Sentences are said by voices with which the heads of the cross-attention were not chosen, and heard as they
are, by telephone and in noise; of the words that were understood, starts and ends are compared. Then the
processor time that recognition takes with and without times. Ends with status 1 where a limit is not kept.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from eval_recordings import RATE, Pcm
from harness.people import CLEAN, Change, Wave, add_noise, conditions
from harness.stats import percentiles, text_of

from parley.asr.reader import Reader, ReadOptions
from parley.asr.readers import load_reader, moonshine
from parley.audio.pcm import Resampler
from parley.launcher.options import ROOT
from parley.runtime.onnx import Stop, open_session
from parley.runtime.parameters import Parameters
from parley.tts.english.pronouncer import load_front_end
from parley.tts.kokoro.network import SAMPLE_RATE, load_network

_WEIGHTS = ROOT / "models"
_SENTENCES = (Path(__file__).parent / "voices_sentences.txt").read_text().splitlines()[30:60]
"""Others than those with which the heads were chosen."""
_VOICES = ("bf_emma", "am_puck")
_BEFORE_MS = (100, 450, 700)
"""Silence before a sentence, in turn."""
_SEED = 1
_SHARES = (0.5, 0.9)
_LIMITS_MS = (60, 150)
"""Of both errors as they are said, by :data:`_SHARES`."""
_PLAIN = re.compile(r"[^a-z]")


@dataclass(frozen=True)
class Sentence:
    """What is said, 16 kHz, and the words with their starts and ends in it (milliseconds)."""

    audio: Pcm
    words: Sequence[tuple[str, float, float]]


def say() -> list[Sentence]:
    """All sentences by all voices."""
    front_end = load_front_end(Parameters("kokoro", {}, environment={"PARLEY_MODELS_DIR": str(_WEIGHTS)}))
    network = load_network(_WEIGHTS / "kokoro-82m", {"en": front_end}, threads=1)
    said = []
    for voice in _VOICES:
        for number, text in enumerate(_SENTENCES):
            words = network.pronounce(text, "en")
            made = network.make(words, voice, Stop())
            resampler = Resampler(SAMPLE_RATE, RATE)
            samples = np.clip(made.audio * 32_767, -32_768, 32_767).astype(np.int16)
            before_ms = _BEFORE_MS[number % len(_BEFORE_MS)]
            silence = [np.zeros(RATE * ms // 1000, np.int16) for ms in (before_ms, 200)]
            audio = np.concatenate([silence[0], resampler.push(samples), resampler.finish(), silence[1]])
            times = (before_ms + 1000 * np.array([made.begins, made.ends]) / SAMPLE_RATE).T.tolist()
            said.append(
                Sentence(audio, [(word.text, *span) for word, span in zip(words, times, strict=True)])
            )
    return said


def errors(reader: Reader, sentences: Sequence[Sentence], change: Change) -> tuple[list[float], list[float]]:
    """Errors at the starts and at the ends of the words that were understood (milliseconds)."""
    starts, ends = [], []
    for sentence in sentences:
        changed = np.clip(change(sentence.audio.astype(np.float32) / 32_768, _SEED), -1, 1)
        heard = reader.read((changed * 32_767).astype(np.int16), ReadOptions()).words
        said, written = (
            [_PLAIN.sub("", text.lower()) for text in texts]
            for texts in ([word[0] for word in sentence.words], [word.text for word in heard])
        )
        for block in difflib.SequenceMatcher(None, said, written, autojunk=False).get_matching_blocks():
            for place in range(block.size):
                (_, start, end), word = sentence.words[block.a + place], heard[block.b + place]
                starts.append(abs(word.start_ms - start))
                ends.append(abs(word.end_ms - end))
    return starts, ends


def white(wave: Wave, seed: int) -> Wave:
    """In white noise."""
    return add_noise(wave, np.random.default_rng(seed).normal(0.0, 0.1, len(wave)).astype(np.float32), 10)


def cost(readers: Sequence[Reader], sentences: Sequence[Sentence]) -> list[float]:
    """Processor time of each by a second of audio (milliseconds), taken in turn."""
    took = [0.0 for _ in readers]
    for sentence in sentences:
        for number, reader in enumerate(readers):
            began = time.process_time()
            reader.read(sentence.audio, ReadOptions())
            took[number] += time.process_time() - began
    return [1000 * one / (sum(len(sentence.audio) for sentence in sentences) / RATE) for one in took]


def main() -> int:
    """Print the table; returns whether a limit was missed."""
    sentences, folder = say(), _WEIGHTS / "moonshine-tiny-en"
    reader = load_reader(folder, "moonshine", open_session)
    with patch.dict(moonshine.HEADS, clear=True):
        plain = load_reader(folder, "moonshine", open_session)
    print("heard                | words | start, p50 / p90 ms | end, p50 / p90 ms")
    missed = False
    made = conditions()
    for name, change in ((CLEAN, made[CLEAN]), ("telephone", made["telephone"]), ("noise 10 dB", white)):
        found = errors(reader, sentences, change)
        shown = [percentiles(values, _SHARES) for values in found]
        print(f"{name:20} | {len(found[0]):5d} | {text_of(shown[0]):19} | {text_of(shown[1])}", flush=True)
        if name == CLEAN:
            missed = any(value > limit for own in shown for value, limit in zip(own, _LIMITS_MS, strict=True))
    without, with_times = cost((plain, reader), sentences)
    print(f"processor time by second of audio: {without:.1f} ms, with times of words {with_times:.1f} ms")
    print(f"ratio {with_times / without:.3f}")
    return int(missed)

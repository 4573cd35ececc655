"""How well the small voices speak: what a recogniser understands of them, their sound, and their joins.

The sentences of ``voices_sentences.txt`` go through the code that serves, without a server. Each voice is
heard by Moonshine, whose own errors count too: it is a floor. Numbers are written out on both sides before
words are compared. DNSMOS estimates how people would rate signal, background and both, from 1 to 5. Ends with
status 1 where a limit is not kept. Weights: make fetch MODEL="moonshine-tiny-en dnsmos", and the voices'

With ``--listen FOLDER`` the audio is written there.
"""

from __future__ import annotations

import argparse
import re
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from clicks import clicks
from harness.stats import p50_p95, text_of, word_errors
from numpy.typing import NDArray

from parley.asr.reader import ReadOptions
from parley.asr.readers import load_reader
from parley.audio.pcm import Resampler
from parley.errors import ParleyError
from parley.launcher.options import ROOT
from parley.models.espeak import EspeakModel
from parley.models.hibari import HibariModel
from parley.models.kokoro import KokoroModel
from parley.models.piper import PiperModel
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir
from parley.triton.model_metrics import SWITCH_VARIABLE
from parley.tts.espeak import KNOWN_VOICES as ESPEAK_VOICES
from parley.tts.hibari.voices import KNOWN_VOICES as HIBARI_VOICES
from parley.tts.kokoro.voices import KNOWN_VOICES as KOKORO_VOICES
from parley.tts.messages import SpeakRequest, SpeechChunk
from parley.tts.normalization.nemo import load_grammars
from parley.tts.normalization.normalizer import TextNormalizer
from parley.tts.piper.voices import KNOWN_VOICES as PIPER_VOICES
from parley_torch.tts.voices.enrollment.recordings import loudness_lufs

_SENTENCES = Path(__file__).parent / "voices_sentences.txt"
_MODELS = {
    "espeak": (EspeakModel, ESPEAK_VOICES),
    "piper": (PiperModel, PIPER_VOICES),
    "hibari": (HibariModel, HIBARI_VOICES),
    "kokoro": (KokoroModel, KOKORO_VOICES),
}
_WEIGHTS, _EAR = ROOT / "models", "moonshine-tiny-en"
_SEED = 1
_EAR_RATE = 16_000
_RATED_SAMPLES = int(9.01 * _EAR_RATE)
_RATINGS = (
    np.poly1d([-0.08397278, 1.22083953, 0.0052439]),
    np.poly1d([-0.13166888, 1.60915514, -0.39604546]),
    np.poly1d([-0.06766283, 1.11546468, 0.04602535]),
)
"""From what the network of DNSMOS gives to ratings, as its publisher has them: signal, background, both."""
_MOST_ERRORS = 0.04
"""Of the words."""
_LOUDNESS, _LOUDNESS_RANGE = -19.0, 2.0
"""LUFS, of the mean over all sentences."""
_FULL_SCALE = 32_767
_SPOKEN_S = 60.0
_HEAD = (
    "voice                | errors   | DNSMOS             | LUFS                      | peak  | clicks | "
    "first ms, p50 / p95 | real time |"
)
_NO_LETTERS = re.compile(r"[^a-z ]+")
_WITHIN_WORDS = str.maketrans({"'": "", "\u2019": "", "-": " "})


@dataclass
class Spoken:
    """What one request was answered; the sink of its speech."""

    chunks: list[SpeechChunk] = field(default_factory=list)
    audio: list[NDArray[np.int16]] = field(default_factory=list)
    first_s: float = 0.0
    error: ParleyError | None = None
    began: float = field(default_factory=time.perf_counter)
    ended: threading.Event = field(default_factory=threading.Event)
    wanted: bool = True

    def on_begun(self) -> None:
        """It is being spoken; its time is counted from the request."""

    def send(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
        """Keep a piece."""
        self.first_s = self.first_s or time.perf_counter() - self.began
        self.chunks.append(chunk)
        self.audio.append(audio)
        return True

    def finish(self) -> None:
        """All was said."""
        self.ended.set()

    def fail(self, error: ParleyError) -> None:
        """It failed."""
        self.error = error
        self.ended.set()


@dataclass
class Report:
    """Of one voice."""

    words: int = 0
    errors: int = 0
    seconds: float = 0.0
    """Of audio."""
    took_s: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    lufs: list[float] = field(default_factory=list)
    ratings: list[NDArray[np.float64]] = field(default_factory=list)
    peak: int = 0
    clicks: int = 0

    def add(self, spoken: Spoken) -> tuple[NDArray[np.int16], int]:
        """Measure a sentence; its audio and rate."""
        rate, audio = spoken.chunks[0].sample_rate, np.concatenate(spoken.audio)
        self.took_s += time.perf_counter() - spoken.began
        self.seconds += len(audio) / rate
        self.first_ms.append(1000 * spoken.first_s)
        self.lufs.append(loudness_lufs(audio.astype(np.float32) / (_FULL_SCALE + 1), rate))
        self.peak = max(self.peak, int(np.abs(audio.astype(np.int32)).max()))
        self.clicks += len(clicks(audio, [chunk.offset for chunk in spoken.chunks[1:]], rate))
        return audio, rate

    def problems(self) -> list[str]:
        """The limits that are not kept."""
        kept = {
            "word errors": self.errors <= _MOST_ERRORS * self.words,
            "loudness": abs(statistics.mean(self.lufs) - _LOUDNESS) <= _LOUDNESS_RANGE,
            "clipping": self.peak < _FULL_SCALE,
            "clicks": self.clicks == 0,
        }
        return [name for name, is_kept in kept.items() if not is_kept]

    def line(self) -> str:
        """For the table."""
        return (
            f"{100 * self.errors / self.words:6.2f} % | {text_of([*np.mean(self.ratings, axis=0)], 2)} | "
            f"{statistics.mean(self.lufs):6.1f} "
            f"({min(self.lufs):5.1f} to {max(self.lufs):5.1f}) | {self.peak / _FULL_SCALE:5.2f} | "
            f"{self.clicks:6d} | {text_of(p50_p95(self.first_ms))} | {self.took_s / self.seconds:9.3f} | "
            f"{', '.join(self.problems()) or 'good'}"
        )


class Ear:
    """Hears what is said."""

    def __init__(self, folder: Path) -> None:
        self._reader = load_reader(folder, "moonshine", open_session)
        self._normalizer = TextNormalizer(load_grammars(("en",), cache_dir() / "normalization"), tags=False)

    def hear(self, audio: NDArray[np.int16]) -> str:
        """The text of a sentence, at 16 kHz."""
        silence = np.zeros(_EAR_RATE // 5, np.int16)
        return self._reader.read(np.concatenate([silence, audio, silence]), ReadOptions()).text

    def words(self, text: str) -> list[str]:
        """What is compared of a text."""
        spoken = self._normalizer.normalize(text, "en").text.lower().translate(_WITHIN_WORDS)
        return _NO_LETTERS.sub(" ", spoken).split()


class Dnsmos:
    """DNSMOS P.835, which estimates how people would rate speech."""

    def __init__(self, file: Path) -> None:
        self._session = open_session(file)

    def rate(self, audio: NDArray[np.int16]) -> NDArray[np.float64]:
        """Ratings of signal, background and both, over every 9 s that begin with a second; 16 kHz."""
        wave = audio.astype(np.float32) / (_FULL_SCALE + 1)
        while len(wave) < _RATED_SAMPLES:
            wave = np.concatenate([wave, wave])
        rated = [
            self._session.run(None, {"input_1": wave[None, at : at + _RATED_SAMPLES]})[0][0]
            for at in range(0, len(wave) - _RATED_SAMPLES + 1, _EAR_RATE)
        ]
        columns = zip(_RATINGS, np.transpose(rated), strict=True)
        return np.array([rating(column).mean() for rating, column in columns])


def evaluate(
    speak: Callable[[str], Spoken], ear: Ear, dnsmos: Dnsmos, args: argparse.Namespace, name: str
) -> Report:
    """Let a voice say all sentences."""
    report = Report()
    for number, text in enumerate(_SENTENCES.read_text().splitlines()[: args.count]):
        audio, rate = report.add(speak(text))
        resampler = Resampler(rate, _EAR_RATE)
        arrived = np.concatenate([resampler.push(audio), resampler.finish()])
        report.ratings.append(dnsmos.rate(arrived))
        said, heard = ear.words(text), ear.hear(arrived)
        errors = word_errors(said, ear.words(heard))
        report.words, report.errors = report.words + len(said), report.errors + errors
        if errors and args.show:
            print(f"    {text} => {heard}")
        if args.listen:
            args.listen.mkdir(parents=True, exist_ok=True)
            soundfile.write(args.listen / f"{name}-{number:02d}.wav", audio, rate)
    return report


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=["piper", "hibari", "kokoro"])
    parser.add_argument("--count", type=int, help="only so many sentences")
    parser.add_argument("--voices", nargs="+", help="only these; default: all that speak English")
    parser.add_argument("--listen", type=Path, help="folder for the audio")
    parser.add_argument("--show", action="store_true", help="print what is misheard")
    args = parser.parse_args()
    ear, dnsmos = Ear(_WEIGHTS / _EAR), Dnsmos(_WEIGHTS / "dnsmos" / "sig_bak_ovr.onnx")
    print(_HEAD)
    failed = False
    for name in args.models:
        make, known = _MODELS[name]
        # There is no Triton that metrics could be published by.
        environment = {"PARLEY_MODELS_DIR": str(_WEIGHTS), SWITCH_VARIABLE: "false"}
        model = make(None, Parameters(name, {}, environment=environment))
        for voice in (one.name for one in known if "en" in one.languages):
            if args.voices and voice not in args.voices:
                continue

            def speak(text: str) -> Spoken:
                spoken = Spoken()
                request = SpeakRequest(request_id="eval", text=text, voice=voice, seed=_SEED)  # noqa: B023
                model.synthesizer.submit(request, spoken)  # noqa: B023 - called at once
                if not spoken.ended.wait(_SPOKEN_S):
                    raise TimeoutError(text)
                if spoken.error is not None:
                    raise spoken.error
                return spoken

            report = evaluate(speak, ear, dnsmos, args, f"{name}-{voice}")
            print(f"{name + ' ' + voice:20} | {report.line()}", flush=True)
            failed |= bool(report.problems())
        model.close()
    return int(failed)

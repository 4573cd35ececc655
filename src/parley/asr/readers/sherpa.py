"""Models that sherpa-onnx packs, read by that library: NeMo CTC, Zipformers, Paraformer, SenseVoice.

The library has an ONNX Runtime of its own, for CPUs. A run cannot be stopped, and expected phrases are not
supported: its transducers would need another kind of search for all streams, its other models have no way.
Only the results of transducers have scores; the networks of the others are run once when they are loaded.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from parley.asr.reader import Reader, ReadOptions, RecognizedText, RunLimits, Stretch
from parley.asr.segmenter.segmentation import FULL_SCALE
from parley.asr.service import milliseconds
from parley.errors import InferenceError, InvalidMessageError, ModelLoadingError
from parley.languages import DETECT
from parley.protocol import Word
from parley.runtime.onnx import OnnxSettings, Stop, StoppedError

_log = logging.getLogger(__name__)
_RATE = 16_000
_SHORTEST = 3_200
"""Samples that every encoder can do with (200 ms)."""
_LONGEST_MS = 30_000
"""What an encoder with attention needs grows with the square of its audio."""
_CONTINUED = "@@"
"""Paraformer's mark of a token that the next one continues."""
_CHECKED_FRAMES = 64
"""Length of the noise with which a network's scores are checked."""

_MODEL = {"model": "model.onnx", "tokens": "tokens.txt"}
_PARTS = {role: f"{role}.onnx" for role in ("encoder", "decoder", "joiner")} | {"tokens": "tokens.txt"}
_STACKED = ("model", "vocab_size", "lfr_window_size", "neg_mean")


@dataclass(frozen=True)
class SherpaFamily:
    """How the library loads the models of a family."""

    factory: str
    """Name of the function of ``sherpa_onnx.OfflineRecognizer`` that takes the files by role."""
    files: Mapping[str, str]
    """Names of their files, by role."""
    metadata: tuple[str, ...]
    """A role, and keys of its file's metadata. Where one is missing, the library ends the process."""
    token_ms: int
    """Length of a frame of scores, which a token lasts at least."""
    languages: tuple[str, ...] = ("en",)
    """Those of a folder that does not list any; the files do not list them."""
    detects: bool = False
    """Whether a model of several languages finds out which one it hears: the library passes on no choice."""


FAMILIES: Mapping[str, SherpaFamily] = {
    "nemo_ctc": SherpaFamily("from_nemo_ctc", _MODEL, ("model", "vocab_size", "subsampling_factor"), 80),
    "zipformer": SherpaFamily("from_transducer", _PARTS, ("decoder", "vocab_size", "context_size"), 40),
    "zipformer_ctc": SherpaFamily("from_zipformer_ctc", _MODEL, ("model", "model_type"), 40),
    "paraformer": SherpaFamily("from_paraformer", _MODEL, _STACKED, 60, ("zh", "en")),
    "sense_voice": SherpaFamily(
        "from_sense_voice", _MODEL, (*_STACKED, "with_itn"), 60, ("zh", "en", "yue", "ja", "ko"), detects=True
    ),
}


class SherpaReader(Reader):
    """Reads with a recogniser of the library.

    Args:
        recognizer: a ``sherpa_onnx.OfflineRecognizer``.
        detects: whether it detects the language; only :data:`DETECT` can then be asked for.
        limits: which stretches it reads together.
        token_ms: see :class:`SherpaFamily`.
        lower: whether texts are written in small letters.
        least_confidence: of a text, 0-1, below which there is none.
    """

    longest_ms = _LONGEST_MS
    spelled = ()

    def __init__(
        self,
        recognizer: Any,
        languages: tuple[str, ...],
        limits: RunLimits,
        *,
        detects: bool = False,
        token_ms: int,
        lower: bool,
        least_confidence: float,
    ) -> None:
        self.languages = (DETECT,) if detects else languages
        self._spoken = languages
        self.run_limits = limits
        self._recognizer = recognizer
        self._token_ms = token_ms
        self._write: Callable[[str], str] = str.lower if lower else str
        self._least_confidence = least_confidence

    def options(self, language: str, phrases: list[str], weight: float) -> ReadOptions:
        """See :class:`Reader`."""
        if phrases:
            raise InvalidMessageError("models of sherpa-onnx take no phrases")
        return super().options(language, phrases, weight)

    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """See :class:`Reader`; a run that has begun is not stopped."""
        if stop.requested:
            raise StoppedError
        began = time.perf_counter()
        try:
            streams = [self._stream(stretch) for stretch in stretches]
            self._recognizer.decode_streams(streams)
            results = [stream.result for stream in streams]
        except Exception as error:  # those of the library's ONNX Runtime have no common class
            raise InferenceError(f"sherpa-onnx failed: {error}") from error
        took_ms = milliseconds(time.perf_counter() - began)
        return [self._text(*pair, took_ms) for pair in zip(results, stretches, strict=True)]

    def _stream(self, stretch: Stretch) -> Any:
        samples = stretch.audio.astype(np.float32) / FULL_SCALE
        stream = self._recognizer.create_stream()
        stream.accept_waveform(_RATE, np.pad(samples, (0, max(_SHORTEST - len(samples), 0))))
        return stream

    def _text(self, result: Any, stretch: Stretch, took_ms: float) -> RecognizedText:
        text = " ".join(self._write(result.text).split())
        tokens = ["".join(self._write(token).removesuffix(_CONTINUED).split()) for token in result.tokens]
        # Transducers alone say how likely their tokens are.
        if not all(map(math.isfinite, result.ys_log_probs)):
            raise InferenceError("the scores of sherpa-onnx are not finite")
        certain = [math.exp(min(value, 0.0)) for value in result.ys_log_probs] or [1.0] * len(tokens)
        confidence = _mean(certain)
        if not any(map(str.isalnum, text)) or confidence < self._least_confidence:
            return RecognizedText("", 0.0, took_ms)
        starts = [stretch.start_ms + round(1000 * second) for second in result.timestamps]
        words: list[Word] = []
        # Bytes of a character, as some vocabularies have them, are tokens without times here.
        if "".join(tokens) == "".join(text.split()) and len(tokens) == len(starts) == len(certain):
            words = self._words(text, tokens, starts, certain)
        return RecognizedText(text, confidence, took_ms, 0.0, self._language(result.lang), tuple(words))

    def _words(
        self, text: str, tokens: Sequence[str], starts: Sequence[int], certain: Sequence[float]
    ) -> list[Word]:
        """The words of a text, each from the start of its first token to the end of its last one."""
        ends = [min(start + self._token_ms, later) for start, later in pairwise([*starts, sys.maxsize])]
        words: list[Word] = []
        after = 0
        for word in text.split():
            first = next(place for place in range(after, len(tokens)) if tokens[place])
            after, length = first, 0
            while length < len(word):
                length += len(tokens[after])
                after += 1
            if length > len(word):  # a token that is a part of two words
                return []
            span = {"start_ms": starts[first], "end_ms": ends[after - 1]}
            words.append(Word(text=word, confidence=_mean(certain[first:after]), **span))
        return words

    def _language(self, said: str) -> str:
        """The language that SenseVoice says it has heard (``<|en|>``); empty: it does not say."""
        language = said.strip("<|>")
        return language if language in self._spoken else ""


def load(
    family: SherpaFamily,
    files: Mapping[str, Path],
    open_network: Callable[[Path], Any],
    languages: tuple[str, ...],
    limits: RunLimits,
    *,
    onnx: OnnxSettings,
    least_confidence: float,
) -> SherpaReader:
    """Load a model.

    Raises:
        ModelLoadingError: a file cannot be used, the network's scores are not finite, or another device than
            the CPU is asked for.
    """
    if onnx.device != "cpu":
        raise ModelLoadingError("sherpa-onnx runs on the CPU: set device to cpu")
    import sherpa_onnx  # noqa: PLC0415 - other recognisers do without the library

    languages = languages or family.languages
    detects = family.detects and len(languages) > 1
    _check_network(family, files, open_network)
    options: dict[str, Any] = {role: str(file) for role, file in files.items()}
    if family.factory == "from_paraformer":
        options["paraformer"] = options.pop("model")
    if family.factory == "from_sense_voice":
        options |= {"use_itn": True, "language": DETECT if detects else languages[0]}
    try:
        symbols = files["tokens"].read_text(encoding="utf-8")
        recognizer = getattr(sherpa_onnx.OfflineRecognizer, family.factory)(
            **options, num_threads=onnx.threads
        )
    except Exception as error:  # see read_together
        raise ModelLoadingError(f"sherpa-onnx cannot load {files['tokens'].parent}: {error}") from error
    return SherpaReader(
        recognizer,
        languages,
        limits,
        detects=detects,
        token_ms=family.token_ms,
        lower=_has_no_small_letters(symbols),
        least_confidence=least_confidence,
    )


def _check_network(
    family: SherpaFamily, files: Mapping[str, Path], open_network: Callable[[Path], Any]
) -> None:
    """Check what the library does not: the metadata, and the scores of a network that it does not pass on.

    Raises:
        ModelLoadingError: metadata are missing, or scores are not finite.
    """
    role, *needed = family.metadata
    network = open_network(files[role])
    found = network.get_modelmeta().custom_metadata_map
    if missing := [key for key in needed if key not in found]:
        raise ModelLoadingError(f"the metadata of {files[role].name} has no {', '.join(missing)}")
    if role != "model":  # a transducer, see SherpaReader._text
        return
    features, *others = network.get_inputs()
    shape = [1, *(size if isinstance(size, int) else _CHECKED_FRAMES for size in features.shape[1:])]
    feed = {features.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    # The number of frames; SenseVoice has ids of its language and its text's form besides.
    for value, other in zip((_CHECKED_FRAMES, 0, 0), others, strict=False):
        feed[other.name] = np.array([value], np.int64 if other.type == "tensor(int64)" else np.int32)
    try:
        scores = network.run(None, feed)[0]
    except Exception as error:  # noqa: BLE001 - Paraformers fail where they find no token
        _log.warning("the scores of %s could not be checked: %s", files[role].name, error)
        return
    if not np.isfinite(scores).all():
        raise ModelLoadingError(f"the scores of {files[role].name} are not finite")


def _has_no_small_letters(symbols: str) -> bool:
    """Whether the lines of ``tokens.txt`` have capitals only; such texts are written in small letters."""
    spelled = "".join(line for line in symbols.splitlines() if not line.startswith("<"))
    return spelled == spelled.upper()


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0

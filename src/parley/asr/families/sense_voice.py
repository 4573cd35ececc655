"""SenseVoice as sherpa-onnx packs it: CTC of five languages, with case, punctuation and written numbers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.frames.ctc import decode_frames
from parley.asr.frames.low_rate import LowRateFeatures
from parley.asr.frames.model import FrameModel, RowTokens, RunResult
from parley.asr.frames.network import OnnxNetwork, pad_rows
from parley.asr.frames.tokens import read_symbols, to_vocabulary
from parley.asr.pipeline.segmentation import FULL_SCALE
from parley.asr.segments.reader import ReadOptions
from parley.errors import ModelLoadingError
from parley.languages import DETECT
from parley.runtime.onnx import Stop

FILES = {"model": "model.onnx", "tokens": "tokens.txt"}
LANGUAGES = (DETECT, "zh", "en", "yue", "ja", "ko")
_QUESTIONS = 4
"""Frames before those of the audio: the language, the mood, what sounds, and the form of the text."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


class SenseVoiceNetwork:
    """:class:`parley.asr.frames.model.FrameNetwork` with the language as an input, or as part of its output.

    Args:
        network: the session.
        blank: class of the blank.
        symbols: the vocabulary.
        languages: the network's number of each.
        form: its number of texts with punctuation and written numbers.
    """

    def __init__(
        self,
        network: OnnxNetwork,
        *,
        blank: int,
        symbols: Sequence[str],
        languages: Mapping[str, int],
        form: int,
    ) -> None:
        self.most_rows = network.most_rows
        self._network = network
        self._blank = blank
        self._symbols = symbols
        self._languages = languages
        self._form = form

    def run(
        self, features: Sequence[NDArray[np.float32]], options: Sequence[ReadOptions], stop: Stop
    ) -> RunResult:
        """See :class:`parley.asr.frames.model.FrameNetwork`."""
        began = time.perf_counter()
        padded, lengths = pad_rows(features, 0.0)
        languages = np.array([self._languages[own.language] for own in options], np.int64)
        forms = np.full(len(features), self._form, np.int64)
        (scores,) = self._network.run(stop, padded, lengths, languages, forms)[:1]
        ran = time.perf_counter()
        rows = [
            self._row(row, length, own)
            for row, length, own in zip(scores, lengths.tolist(), options, strict=True)
        ]
        return RunResult.timed(rows, began, ran)

    def _row(self, scores: NDArray[np.float32], length: int, options: ReadOptions) -> RowTokens:
        spoken = scores[_QUESTIONS : _QUESTIONS + length]
        tokens = decode_frames(spoken, self._blank, options.boosting, tokens=len(self._symbols))
        said = _LANGUAGE.fullmatch(self._symbols[int(scores[0].argmax())])
        return RowTokens(tokens, language=said[1] if said and said[1] in self._languages else "")


def load(
    files: Mapping[str, Path], open_network: Callable[[Path], Any], languages: tuple[str, ...]
) -> FrameModel:
    """Load a model; see :class:`parley.asr.families.Family`."""
    symbols = read_symbols(files["tokens"])
    network = OnnxNetwork(open_network(files["model"]), files["model"].name, inputs=4, outputs=1)
    metadata = network.metadata()
    if unknown := set(languages) - set(LANGUAGES):
        raise ModelLoadingError(f"sense_voice has no {', '.join(sorted(unknown))}")
    numbers = {language: metadata.integer(f"lang_{language}") for language in LANGUAGES}
    blank = metadata.integer("blank_id", "0")
    if metadata.integer("vocab_size", minimum=1) != len(symbols) or blank >= len(symbols):
        raise ModelLoadingError(
            f"{files['model']} has {metadata.text('vocab_size')} tokens, and {files['tokens']} {len(symbols)}"
        )
    # Integers, unless the file says that samples are within ±1.
    features = LowRateFeatures(
        metadata, full_scale=1.0 if metadata.integer("normalize_samples") else float(FULL_SCALE)
    )
    network.check_input(0, 2, features.size, "features")
    network.check_width(0, 2, len(symbols), "tokens")
    sense_voice = SenseVoiceNetwork(
        network, blank=blank, symbols=symbols, languages=numbers, form=metadata.integer("with_itn")
    )
    return FrameModel(features, sense_voice, to_vocabulary(symbols), features.frame_ms, languages)

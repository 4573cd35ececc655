"""Paraformer as sherpa-onnx packs it: all tokens of a text in one run, Chinese and English.

A predictor says how many tokens there are, and newer exports where: then words have times. See
https://arxiv.org/abs/2206.08317.
"""

from __future__ import annotations

import logging
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.greedy import Tokens, tsallis_confidence
from parley.asr.decoding.vocabulary import WORD_MARK
from parley.asr.frames.ctc import choose_tokens
from parley.asr.frames.low_rate import LowRateFeatures
from parley.asr.frames.model import FrameModel, RowTokens, RunResult
from parley.asr.frames.network import OnnxNetwork, check_scores, pad_rows
from parley.asr.frames.tokens import find_blank, read_symbols
from parley.asr.pipeline.segmentation import FULL_SCALE
from parley.asr.segments.reader import ReadOptions
from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx import Stop

_log = logging.getLogger(__name__)

FILES = {"model": "model.onnx", "tokens": "tokens.txt"}
LANGUAGES = ("zh", "en")
_END = "</s>"
_GOES_ON = "@@"
"""At the end of a symbol: the word goes on with the next one."""
_PEAKS_PER_FRAME = 3
"""Times are finer than the frames of features."""
_PEAK = 1.0 - 1e-4
"""The predictor's weights have added up to a token."""
_SPEECH = Path(__file__).with_name("paraformer_speech.wav")
"""1.5 s of sentences-00.flac of the tests, said by flite's voice slt; mono, 16 bits, 16 kHz."""
_LONGEST_MS = 240
"""A token does not last until the next one, if that is later."""


class ParaformerNetwork:
    """:class:`parley.asr.frames.model.FrameNetwork`: a row of scores for each token.

    Published exports fail where the predictor finds no token, as in silence and noise; sherpa-onnx takes
    every failure of a run for that. Here it is one if the network can then read known speech that is at
    least as long: what callers send, however often, does not decide whether the network is broken.

    Args:
        network: the session.
        blank: class of the blank, which is no token.
        end: the token after a text.
        tokens: size of the vocabulary.
        peak_ms: milliseconds from one weight of the predictor to the next.
        speech: features of speech, f32 ``[frames, features]``.
    """

    def __init__(
        self,
        network: OnnxNetwork,
        *,
        blank: int,
        end: int,
        tokens: int,
        peak_ms: int,
        speech: NDArray[np.float32],
    ) -> None:
        self.most_rows = network.most_rows
        self._network = network
        self._blank = blank
        self._end = end
        self._tokens = tokens
        self._longest = _LONGEST_MS // peak_ms
        self._speech = speech

    def run(
        self, features: Sequence[NDArray[np.float32]], options: Sequence[ReadOptions], stop: Stop
    ) -> RunResult:
        """See :class:`parley.asr.frames.model.FrameNetwork`."""
        began = time.perf_counter()
        try:
            scores, counts, *more = self._network.run(stop, *pad_rows(features, 0.0))
        except InferenceError as error:
            if len(features) > 1:
                raise
            self._read_speech(len(features[0]), stop)
            _log.info("%d frames have no token: %s", len(features[0]), error)
            return RunResult.timed([RowTokens(Tokens.none())], began, time.perf_counter())
        ran = time.perf_counter()
        if not np.isfinite(counts).all():
            raise InferenceError("the numbers of tokens are not finite")
        peaks = more[1] if len(more) > 1 else [None] * len(features)
        rows = [
            self._row(row[: max(int(count), 0)], own, peak)
            for row, count, own, peak in zip(scores, np.ravel(counts), options, peaks, strict=True)
        ]
        return RunResult.timed(rows, began, ran)

    def _read_speech(self, frames: int, stop: Stop) -> None:
        """Read known speech of at least ``frames`` frames; raises ``InferenceError`` if that fails."""
        times = -(-frames // len(self._speech))
        self._network.run(stop, *pad_rows([np.tile(self._speech, (times, 1))], 0.0))

    def _row(
        self, scores: NDArray[np.float32], options: ReadOptions, peaks: NDArray[np.float32] | None
    ) -> RowTokens:
        check_scores(scores, self._tokens)
        ends = np.flatnonzero(scores.argmax(axis=1) == self._end)
        scores = scores[: ends[0]] if len(ends) else scores
        ids = choose_tokens(scores, self._end, options.boosting)
        kept = ids != self._blank
        frames, durations = np.zeros(len(ids), np.int32), np.ones(len(ids), np.int32)
        # The last peak is that of the end.
        fired = np.flatnonzero(peaks > _PEAK) if peaks is not None else np.zeros(0, np.int64)
        timed = len(fired) == len(ids) + 1
        if timed:
            frames = fired[:-1].astype(np.int32)
            durations = np.minimum(np.diff(fired), self._longest).astype(np.int32)
        confidences = tsallis_confidence(scores[kept]) if kept.any() else np.zeros(0, np.float32)
        tokens = Tokens(ids[kept].astype(np.int32), frames[kept], durations[kept], confidences)
        return RowTokens(tokens, timed=timed)


@dataclass(frozen=True)
class ContinuedSymbols:
    """Symbols of which those that end in ``@@`` go on, and those that are no ASCII need no spaces."""

    symbols: tuple[str, ...]

    @property
    def spelled(self) -> tuple[str, ...]:
        """See :class:`parley.asr.frames.model.TokenSpelling`; phrases are found whose words are symbols."""
        return tuple(
            "" if _is_control(symbol) else (WORD_MARK if symbol.isascii() else "") + symbol
            for symbol in self.symbols
        )

    def pieces_of(self, ids: Sequence[int]) -> list[bytes | None]:
        """See :class:`parley.asr.frames.model.TokenSpelling`."""
        pieces: list[bytes | None] = []
        before = ""
        for token in ids:
            symbol = self.symbols[token]
            if _is_control(symbol):
                pieces.append(None)
                continue
            joins = before.endswith(_GOES_ON) if symbol.isascii() else not before.isascii()
            pieces.append((("" if joins else WORD_MARK) + symbol.removesuffix(_GOES_ON)).encode())
            before = symbol
        return pieces


def _is_control(symbol: str) -> bool:
    return symbol.startswith("<") and symbol.endswith(">")


def _known_speech() -> NDArray[np.float32]:
    """A recording of speech: f32 ``[n]`` within ±1, 16 kHz."""
    with wave.open(str(_SPEECH)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples.astype(np.float32) / FULL_SCALE


def load(
    files: Mapping[str, Path], open_network: Callable[[Path], Any], languages: tuple[str, ...]
) -> FrameModel:
    """Load a model; see :class:`parley.asr.families.Family`."""
    symbols = read_symbols(files["tokens"])
    if _END not in symbols:
        raise ModelLoadingError(f"{files['tokens']} has no {_END}")
    network = OnnxNetwork(open_network(files["model"]), files["model"].name, inputs=2, outputs=2)
    metadata = network.metadata()
    if metadata.integer("vocab_size", minimum=1) != len(symbols):
        raise ModelLoadingError(
            f"{files['model']} has {metadata.text('vocab_size')} tokens, and {files['tokens']} {len(symbols)}"
        )
    features = LowRateFeatures(metadata)
    network.check_input(0, 2, features.size, "features")
    network.check_width(0, 2, len(symbols), "tokens")
    peak_ms = features.frame_ms // _PEAKS_PER_FRAME
    paraformer = ParaformerNetwork(
        network,
        blank=find_blank(symbols),
        end=symbols.index(_END),
        tokens=len(symbols),
        peak_ms=peak_ms,
        speech=features(_known_speech()),
    )
    return FrameModel(features, paraformer, ContinuedSymbols(symbols), peak_ms, languages)

"""The exported streaming recogniser run chunk by chunk, as plainly as can be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parley.runtime.onnx import open_session

Floats = npt.NDArray[np.float32]

_CACHES = ("cache_last_channel", "cache_last_time", "cache_last_channel_len")
_ENCODED = ("outputs", *(f"{name}_next" for name in _CACHES[:2]), "cache_last_channel_next_len")


class StreamingOnnx:
    """One export with one look-ahead."""

    def __init__(self, folder: Path, look_ahead: int) -> None:
        self._config = json.loads((folder / "config.json").read_text())
        self._streaming = self._config["streaming"]
        self.chunk_frames: int = self._streaming["chunk_frames"][str(look_ahead)]
        """Feature frames of a chunk."""
        self._encoder = open_session(folder / f"encoder-r{look_ahead}.onnx")
        self._decoder = open_session(folder / "decoder_joint-model.onnx")

    def chunks(self, features: Floats) -> Iterator[Floats]:
        """Cut features ``[B, F, T]`` into encoder inputs ``[B, F, history + chunk]``.

        Silence comes before them, and one chunk of silence and what completes the last chunk after them.
        """
        history, size = self._streaming["history_frames"], self.chunk_frames
        flush = -features.shape[2] % size + size
        silence = self._streaming["silence"]
        padded = np.pad(features, ((0, 0), (0, 0), (history, flush)), constant_values=silence)
        for start in range(0, features.shape[2] + flush, size):
            yield padded[:, :, start : start + history + size]

    def encode(self, features: Floats) -> Iterator[Floats]:
        """Encoder output ``[B, D, R + 1]`` of each chunk."""
        caches = self.caches(len(features))
        for chunk in self.chunks(features):
            outputs, caches = self.step(chunk, caches)
            yield outputs

    def caches(self, streams: int) -> list[npt.NDArray[Any]]:
        """The encoder's caches before the first chunk."""
        channel = np.zeros((streams, *self._streaming["cache_last_channel"]), np.float32)
        time = np.zeros((streams, *self._streaming["cache_last_time"]), np.float32)
        return [channel, time, np.zeros(streams, np.int64)]

    def step(self, chunk: Floats, caches: list[npt.NDArray[Any]]) -> tuple[Floats, list[npt.NDArray[Any]]]:
        """Encode one chunk of all streams: its output, and the caches after it."""
        lengths = np.full(len(chunk), chunk.shape[2], np.int64)
        inputs = {"audio_signal": chunk, "length": lengths, **dict(zip(_CACHES, caches, strict=True))}
        outputs, *following = self._encoder.run(_ENCODED, inputs)
        return outputs, following

    def tokens(self, features: Floats) -> list[int]:
        """Greedy tokens of one stream with features ``[F, T]``."""
        blank = self._config["blank_id"]
        sizes = (self._config["decoder_num_layers"], 1, self._config["decoder_hidden_size"])
        states = [np.zeros(sizes, np.float32)] * 2
        last, tokens = blank, []
        for encoded in self.encode(features[None]):
            for frame in range(encoded.shape[2]):
                for _ in range(self._config["max_tokens_per_step"]):
                    logits, following = self._predict(encoded[:, :, frame : frame + 1], last, states)
                    best = int(logits.argmax())
                    if best == blank:
                        break
                    last, states = best, following
                    tokens.append(best)
        return tokens

    def _predict(self, frame: Floats, last: int, states: list[Floats]) -> tuple[Floats, list[Floats]]:
        logits, *following = self._decoder.run(
            ["outputs", "output_states_1", "output_states_2"],
            {
                "encoder_outputs": frame,
                "targets": np.array([[last]], np.int32),
                "target_length": np.array([1], np.int32),
                "input_states_1": states[0],
                "input_states_2": states[1],
            },
        )
        return logits, following

"""sherpa-onnx's streaming recogniser, on an export that ``build/export_sherpa.py`` rewrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sherpa_onnx
from numpy.typing import NDArray

from streams.contract import RATE, serve

# It takes the first chunk together with the 9 frames before it, and its frames are centred 5 ms later than
# NeMo's; Parley fills these 9 frames itself, with what silence looks like. With this lead both see
# the same chunks. It waits for the samples of a frame and a half more than it takes, so it reads a chunk when
# the next one comes; each step has one chunk all the same.
LEAD_MS = 95


class SherpaRuntime:
    """:class:`streams.contract.Runtime`."""

    def __init__(self, recognizer: Any, look_ahead: int) -> None:
        self._recognizer = recognizer
        self.chunk = (look_ahead + 1) * 8 * RATE // 100

    def open(self) -> Any:
        """See the interface."""
        stream = self._recognizer.create_stream()
        stream.accept_waveform(RATE, np.zeros(LEAD_MS * RATE // 1000, np.float32))
        return stream

    def feed(self, streams: Sequence[Any], pieces: Sequence[NDArray[np.int16]]) -> None:
        """See the interface."""
        for stream, piece in zip(streams, pieces, strict=True):
            stream.accept_waveform(RATE, piece.astype(np.float32) / 32768)
        while ready := [stream for stream in streams if self._recognizer.is_ready(stream)]:
            self._recognizer.decode_streams(ready)

    def close(self, stream: Any) -> str:
        """See the interface; a chunk of silence flushes the last word."""
        self.feed([stream], [np.zeros(2 * self.chunk, np.int16)])
        return str(self._recognizer.get_result(stream)).strip()


def load(model: Path, look_ahead: int) -> SherpaRuntime:
    """Open a rewritten export."""
    recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(
        tokens=str(model / "tokens.txt"),
        encoder=str(model / "encoder.onnx"),
        decoder=str(model / "decoder.onnx"),
        joiner=str(model / "joiner.onnx"),
        num_threads=1,
        decoding_method="greedy_search",
    )
    return SherpaRuntime(recognizer, look_ahead)


if __name__ == "__main__":
    serve(load)

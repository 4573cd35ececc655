"""The line between a caller's microphone and the server: a telephone's codec, and lost packets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parley_client.audio.files import Pcm
from parley_testing.voices import RATE

_PACKET = RATE // 50
_BURST = 2.0
"""Mean length of a loss (packets): losses come in bursts."""


class Line:
    """Changes the chunks of a microphone, in their order.

    Args:
        telephone: G.711 µ-law at 8 kHz, by the codec of the gateway; some 4 ms late.
        loss: share of packets of 20 ms that are lost, 0 to 0.5; a lost one is silent.
        seed: of the losses.
    """

    def __init__(self, *, telephone: bool = False, loss: float = 0.0, seed: int = 0) -> None:
        self._codec = _telephone() if telephone else lambda chunk: chunk
        self._loss = loss
        self._rng = np.random.default_rng(seed)
        self._done = 0
        self._is_lost = False

    def send(self, chunk: Pcm) -> Pcm:
        """What arrives of a chunk, 16 kHz mono: as many samples."""
        chunk = self._codec(chunk)
        return chunk * self._arrives(len(chunk)) if self._loss else chunk

    def _arrives(self, count: int) -> Pcm:
        """1 for each sample of a packet that arrives, 0 for the others: int16 [count]."""
        mask = np.ones(count, np.int16)
        at = 0
        while at < count:
            place = (self._done + at) % _PACKET
            if place == 0:
                # Two states with a mean of `loss`, as in Gilbert's model.
                ends, begins = 1 / _BURST, self._loss / (1 - self._loss) / _BURST
                self._is_lost = self._rng.random() < (1 - ends if self._is_lost else begins)
            until = min(count, at + _PACKET - place)
            if self._is_lost:
                mask[at:until] = 0
            at = until
        self._done += count
        return mask


def _telephone() -> Callable[[Pcm], Pcm]:
    from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder  # noqa: PLC0415 - tables

    ulaw = AudioFormat("ulaw", 8_000)
    encoder, decoder = Encoder(ulaw, RATE), AudioStreamDecoder(ulaw, RATE)
    return lambda chunk: decoder.decode(encoder.encode(chunk))

"""The three networks in this process, for tools that need transcripts without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.batch import RowDecoder, make_decoder
from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.words import words_of
from parley.asr.features import LogMel
from parley.asr.parakeet.networks import (
    DecodedPiece,
    OnnxEncoder,
    OnnxJoint,
    piece_inputs,
    read_decoded,
)
from parley.errors import ParleyError
from parley.models.parakeet_decoder import DecoderService
from parley.protocol import Word
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder


class LocalModels:
    """:class:`parley.asr.parakeet.pipeline.AcousticModels` on the CPU."""

    def __init__(self, vad: SileroVad, encoder: OnnxEncoder, decoder: RowDecoder) -> None:
        self.detect, self.encode = vad.detect, encoder.encode
        self._service = DecoderService(decoder)

    @classmethod
    def open(cls, export: Checkpoint, *, beam_size: int | None = None) -> Self:
        """Load the networks of an export, and the voice activity network of its package.

        Raises:
            ModelLoadingError: one of them cannot be loaded.
        """
        return cls(
            SileroVad(open_session(bundled_folder() / FILE)),
            OnnxEncoder(open_session(export.encoder)),
            make_decoder(export, OnnxJoint(open_session(export.decoder)), beam_size=beam_size),
        )

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> list[DecodedPiece]:
        """See :meth:`parley.asr.parakeet.pipeline.AcousticModels.decode`."""
        (outputs,) = self._service.serve([piece_inputs(encoded, lengths, boosting)])
        if isinstance(outputs, ParleyError):
            raise outputs
        return read_decoded(outputs)


class Transcriber:
    """Whole recordings to words, with the serving code and without segmentation."""

    def __init__(self, folder: Path) -> None:
        """Load an export.

        Raises:
            ModelLoadingError: it cannot be loaded.
        """
        self._checkpoint = checkpoint.load(folder)
        self._models = LocalModels.open(self._checkpoint)
        self._mel = LogMel(self._checkpoint.config)

    def words(self, audio: NDArray[np.int16]) -> list[Word]:
        """Recognise a recording: i16 ``[n]``, 16 kHz mono, at least one feature frame (10 ms) long."""
        features = self._mel.normalized(self._mel.offline(audio.astype(np.float32) / np.float32(32768)))
        encoded, lengths = self._models.encode(features[None], np.array([features.shape[1]], np.int64))
        return words_of(self._models.decode(encoded, lengths)[0].tokens, self._checkpoint)

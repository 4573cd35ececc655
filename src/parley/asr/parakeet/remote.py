"""The three networks as models of the repository, called by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.parakeet.pieces import (
    PIECE_OUTPUTS,
    TOKEN_OUTPUTS,
    Decoded,
    RowState,
    piece_inputs,
    read_decoded,
    read_states,
)
from parley.errors import InferenceError
from parley.inference import BlockingModelClient, ModelRequest, ModelResponse, Tensor

VAD_MODEL = "silero_vad"
ENCODER_MODEL = "parakeet_encoder"
DECODER_MODEL = "parakeet_decoder"


class RemoteModels:
    """:class:`parley.asr.parakeet.rail.AcousticModels` behind a port."""

    def __init__(self, port: BlockingModelClient, *, timeout_s: float) -> None:
        """Call through ``port``, with ``timeout_s`` for each call."""
        self._port = port
        self._timeout_s = timeout_s

    def detect(
        self,
        windows: NDArray[np.float32],
        counts: NDArray[np.int32],
        state: NDArray[np.float32],
        context: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.vad.silero.SileroVad.detect`."""
        outputs = self._call(
            VAD_MODEL,
            {"WINDOWS": windows, "COUNT": counts[:, None], "STATE": state, "CONTEXT": context},
            ("PROBABILITIES", "NEXT_STATE", "NEXT_CONTEXT"),
        )
        return outputs["PROBABILITIES"], outputs["NEXT_STATE"], outputs["NEXT_CONTEXT"]

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`parley.asr.parakeet.networks.OnnxEncoder.encode`."""
        outputs = self._call(
            ENCODER_MODEL,
            {"FEATURES": features, "LENGTH": lengths[:, None]},
            ("ENCODED", "ENCODED_LENGTH"),
        )
        return outputs["ENCODED"], outputs["ENCODED_LENGTH"][:, 0]

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> list[Decoded]:
        """See :meth:`parley.asr.parakeet.rail.AcousticModels.decode`."""
        inputs = piece_inputs(encoded, lengths, boosting=boosting)
        return read_decoded(self._call(DECODER_MODEL, inputs, TOKEN_OUTPUTS))

    def decode_pieces(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        states: Sequence[RowState] | None,
        *,
        final: Sequence[bool],
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> tuple[list[Decoded], list[RowState]]:
        """See :meth:`parley.asr.transcription.rounds.TranscriptionModels.decode_pieces`."""
        inputs = piece_inputs(encoded, lengths, states=states, final=final, boosting=boosting)
        outputs = self._call(DECODER_MODEL, inputs, PIECE_OUTPUTS)
        return read_decoded(outputs), read_states(outputs)

    def _call(self, model: str, inputs: dict[str, Tensor], outputs: tuple[str, ...]) -> ModelResponse:
        response = self._port.infer(ModelRequest(model, inputs, outputs, timeout_s=self._timeout_s))
        rows = {len(tensor) for tensor in inputs.values()}
        missing = [name for name in outputs if name not in response or {len(response[name])} != rows]
        if missing:
            raise InferenceError(f"{model} answered without {', '.join(missing)} for every row")
        return response

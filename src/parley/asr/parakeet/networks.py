"""Parakeet's networks on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.greedy import JointNetwork, Tokens
from parley.asr.segmenter.segmentation import Detector
from parley.errors import InferenceError, InvalidInputError
from parley.inference import BlockingModelClient, ModelRequest, ModelResponse, Tensor
from parley.runtime.batching import check_rows


def pad_features(rows: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features of several stretches side by side, for one call of the encoder.

    Args:
        rows: each f32 ``[bands, T]``; one of no frame becomes one frame of silence.

    Returns:
        f32 ``[B, bands, T]``, padded with zeros, and i64 ``[B]``, the frames of each.
    """
    lengths = np.array([max(row.shape[1], 1) for row in rows], np.int64)
    features = np.zeros((len(rows), rows[0].shape[0], lengths.max()), np.float32)
    for padded, row in zip(features, rows, strict=True):
        padded[:, : row.shape[1]] = row
    return features, lengths


class OfflineEncoder(Protocol):
    """The acoustic encoder: features in, one vector per 80 ms out."""

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`OnnxEncoder.encode`."""
        ...


class OnnxEncoder:
    """:class:`OfflineEncoder` on ONNX Runtime."""

    def __init__(self, session: Any) -> None:
        """Use a session of ``encoder-model.onnx``."""
        self._session = session

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Encode a padded batch; a row's result does not depend on its padding.

        Args:
            features: f32 ``[B, bands, T]``, normalised.
            lengths: i64 ``[B]``, real frames of each row; of none nothing is encoded.

        Returns:
            f32 ``[B, D, T']`` and i64 ``[B]``, how many of the ``T'`` frames are real.

        Raises:
            RowsNotFiniteError: the output of some rows is not finite.
            InferenceError: the network failed, for example because a row is too long for it.
        """
        # The network makes NaN of a row without a frame.
        feed = {"audio_signal": features, "length": np.maximum(lengths, 1)}
        try:
            outputs, encoded = self._session.run(["outputs", "encoded_lengths"], feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the encoder failed on {features.shape}: {error}") from error
        check_rows(np.isfinite(outputs).all(axis=(1, 2)), "the encoder's output is")
        return outputs, np.where(lengths > 0, encoded, 0)


class OnnxJoint(JointNetwork):
    """The prediction and joint networks (:class:`parley.asr.decoding.greedy.JointNetwork`)."""

    def __init__(self, session: Any) -> None:
        """Use a session of ``decoder_joint-model.onnx``."""
        self._session = session
        shapes = {tensor.name: tensor.shape for tensor in session.get_inputs()}
        self.inputs: int = shapes["encoder_outputs"][1]
        self.layers: int = shapes["input_states_1"][0]
        self.width: int = shapes["input_states_1"][2]

    def scan(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.asr.decoding.greedy.JointNetwork.scan`.

        Raises:
            InferenceError: the network failed.
        """
        rows = len(targets)
        feed = {
            "encoder_outputs": frames.transpose(0, 2, 1),
            "targets": targets[:, None],
            "target_length": np.ones(rows, np.int32),
            "input_states_1": hidden,
            "input_states_2": cell,
        }
        try:
            logits, hidden, cell = self._session.run(["outputs", "output_states_1", "output_states_2"], feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the joint network failed on {rows} rows: {error}") from error
        return logits[:, :, 0], hidden, cell


ENCODER_MODEL = "parakeet_encoder"
DECODER_MODEL = "parakeet_decoder"


class RemoteModels:
    """:class:`parley.asr.parakeet.pipeline.AcousticModels`: encoder and decoder behind a port."""

    def __init__(self, port: BlockingModelClient, detector: Detector, *, timeout_s: float) -> None:
        """Call through ``port``, with ``timeout_s`` for each call; ``detector`` finds voice activity."""
        self._port = port
        self._timeout_s = timeout_s
        self.detect = detector.detect

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
    ) -> list[DecodedPiece]:
        """See :meth:`parley.asr.parakeet.pipeline.AcousticModels.decode`."""
        inputs = piece_inputs(encoded, lengths, boosting)
        return read_decoded(self._call(DECODER_MODEL, inputs, TOKEN_OUTPUTS))

    def _call(self, model: str, inputs: dict[str, Tensor], outputs: tuple[str, ...]) -> ModelResponse:
        response = self._port.infer(ModelRequest(model, inputs, outputs, timeout_s=self._timeout_s))
        rows = {len(tensor) for tensor in inputs.values()}
        missing = [name for name in outputs if name not in response or {len(response[name])} != rows]
        if missing:
            raise InferenceError(f"{model} answered without {', '.join(missing)} for every row")
        return response


TOKEN_OUTPUTS = ("TOKENS", "FRAMES", "DURATIONS", "CONFIDENCES", "TOKEN_COUNT", "ALTERNATIVES", "SCORES")
NO_SCORE = float(np.finfo(np.float32).min)
"""In ``SCORES`` where there is no reading. Not -inf, which JSON does not have: a client of Triton's HTTP
interface and perf_analyzer's export could not be read."""
_PHRASES = ("PHRASE_ARCS", "PHRASE_BONUS", "PHRASE_FALLBACK")


@dataclass(frozen=True)
class DecodedPiece:
    """What was decoded of one row."""

    tokens: Tokens
    """Of the best reading."""
    alternatives: list[tuple[list[int], float]] = field(default_factory=list)
    """If a beam was searched: token ids and score of each reading, best first."""


def piece_inputs(
    encoded: NDArray[np.float32],
    lengths: NDArray[np.int64],
    boosting: Sequence[PhraseAutomaton] | None = None,
) -> dict[str, Tensor]:
    """The decoder's inputs.

    Args:
        encoded: f32 ``[B, D, T']``.
        lengths: i64 ``[B]``, real frames of each row.
        boosting: each row's phrases; None: no row has any.
    """
    inputs: dict[str, Tensor] = {"ENCODED": encoded, "ENCODED_LENGTH": lengths[:, None]}
    if boosting is not None and any(len(automaton.bonus) for automaton in boosting):
        inputs |= _phrase_inputs(boosting)
    return inputs


def read_decoded(outputs: Mapping[str, Tensor]) -> list[DecodedPiece]:
    """What was decoded of each row, from :data:`TOKEN_OUTPUTS`."""
    return [
        DecodedPiece(
            Tokens(
                outputs["TOKENS"][row, :count],
                outputs["FRAMES"][row, :count],
                outputs["DURATIONS"][row, :count],
                outputs["CONFIDENCES"][row, :count],
            ),
            [
                ([token for token in ids if token >= 0], score)
                for ids, score in zip(
                    outputs["ALTERNATIVES"][row].tolist(), outputs["SCORES"][row].tolist(), strict=True
                )
                if score > NO_SCORE
            ],
        )
        for row, count in enumerate(outputs["TOKEN_COUNT"][:, 0].tolist())
    ]


def _phrase_inputs(boosting: Sequence[PhraseAutomaton]) -> dict[str, Tensor]:
    """The automata side by side; arcs that are only padding have the state -1."""
    arcs = max(len(automaton.bonus) for automaton in boosting)
    states = max(len(automaton.fallback) for automaton in boosting)
    inputs = {
        "PHRASE_ARCS": np.full((len(boosting), arcs, 3), -1, np.int32),
        "PHRASE_BONUS": np.zeros((len(boosting), arcs), np.float32),
        "PHRASE_FALLBACK": np.zeros((len(boosting), states), np.float32),
    }
    for row, automaton in enumerate(boosting):
        inputs["PHRASE_ARCS"][row, : len(automaton.arcs)] = automaton.arcs
        inputs["PHRASE_BONUS"][row, : len(automaton.bonus)] = automaton.bonus
        inputs["PHRASE_FALLBACK"][row, : len(automaton.fallback)] = automaton.fallback
    return inputs


def read_phrases(inputs: Mapping[str, Tensor], tokens: int) -> list[PhraseAutomaton]:
    """Each row's phrases, from a request's inputs; none where it has none.

    Args:
        inputs: as :func:`piece_inputs` made them.
        tokens: size of the vocabulary, without the blank.

    Raises:
        InvalidInputError: some tensor is missing, or they are not automata over these tokens.
    """
    given = [name for name in _PHRASES if name in inputs]
    if not given:
        return [PhraseAutomaton.nothing() for _ in inputs["ENCODED"]]
    if len(given) != len(_PHRASES):
        raise InvalidInputError(f"{', '.join(given)} without the rest of {', '.join(_PHRASES)}")
    arcs, bonus, fallback = (inputs[name] for name in _PHRASES)
    if arcs.ndim != 3 or arcs.shape[2] != 3 or bonus.shape != arcs.shape[:2] or fallback.ndim != 2:
        raise InvalidInputError("PHRASE_ARCS must be [rows, arcs, 3], PHRASE_BONUS [rows, arcs]")
    if not fallback.shape[1] or (fallback[:, 0] != 0).any():
        raise InvalidInputError("PHRASE_FALLBACK must begin with 0")
    if not (np.isfinite(bonus).all() and np.isfinite(fallback).all()):
        raise InvalidInputError("PHRASE_BONUS or PHRASE_FALLBACK has values that are not finite")
    counts = np.count_nonzero(arcs[:, :, 0] >= 0, axis=1).tolist()
    automata = [
        PhraseAutomaton(own[:count], earned[:count], back)
        for own, earned, back, count in zip(arcs, bonus, fallback, counts, strict=True)
    ]
    limits = np.array([fallback.shape[1], tokens, fallback.shape[1]])
    for automaton in automata:
        ordered = (np.diff(automaton.arcs[:, 0]) >= 0).all()
        if not ordered or (automaton.arcs < 0).any() or (automaton.arcs >= limits).any():
            raise InvalidInputError("PHRASE_ARCS are not in order, or lead nowhere")
    return automata

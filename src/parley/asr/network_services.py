"""What ``silero_vad``, ``parakeet_encoder`` and ``parakeet_decoder`` do with their requests.

Each takes the input tensors of all requests of an execution and runs its network once for all of
their rows. The tensors are those of the models' ``config.pbtxt``, with the batch dimension first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.networks import OnnxEncoder
from parley.asr.pieces import CARRIED
from parley.asr.transducer import Tokens, TransducerDecoder, TransducerState
from parley.errors import InvalidInputError, ParleyError
from parley.inference import Tensor
from parley.serving.batching import Tensors, column, run_together, split_rows, stack_rows
from parley.vad.silero import SileroVad


class VadService:
    """Probabilities of speech.

    Inputs: ``WINDOWS`` f32 ``[B, W, 512]``, of which each row has ``COUNT`` i32 ``[B, 1]``; ``STATE``
    f32 ``[B, 2, 128]`` and ``CONTEXT`` f32 ``[B, 64]``, zeros at first. Outputs: ``PROBABILITIES``
    f32 ``[B, W]``, and ``NEXT_STATE`` and ``NEXT_CONTEXT`` for the next windows.
    """

    def __init__(self, vad: SileroVad) -> None:
        self._vad = vad

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Score the windows of all requests."""
        return run_together(requests, _check_windows, self._run)

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        probabilities, state, context = self._vad.detect(
            stack_rows([request["WINDOWS"] for request in requests]),
            np.concatenate([column(request["COUNT"], "COUNT") for request in requests]).astype(np.int32),
            np.concatenate([request["STATE"] for request in requests]),
            np.concatenate([request["CONTEXT"] for request in requests]),
        )
        rows = [len(request["WINDOWS"]) for request in requests]
        return [
            {
                "PROBABILITIES": scored[:, : request["WINDOWS"].shape[1]],
                "NEXT_STATE": next_state,
                "NEXT_CONTEXT": next_context,
            }
            for request, scored, next_state, next_context in zip(
                requests,
                split_rows(probabilities, rows),
                split_rows(state, rows),
                split_rows(context, rows),
                strict=True,
            )
        ]


class EncoderService:
    """Encoded speech.

    Inputs: ``FEATURES`` f32 ``[B, bands, T]``, of which each row has ``LENGTH`` i64 ``[B, 1]``
    frames. Outputs: ``ENCODED`` f32 ``[B, D, T']`` with ``ENCODED_LENGTH`` i64 ``[B, 1]`` frames.
    """

    def __init__(self, encoder: OnnxEncoder, bands: int) -> None:
        self._encoder = encoder
        self._bands = bands

    def warm_up(self) -> None:
        """Run once, so that the first real request does not pay for what only the first run does.

        Raises:
            ParleyError: the network cannot run at all.
        """
        frames = 1000
        self._run(
            [
                {
                    "FEATURES": np.zeros((1, self._bands, frames), np.float32),
                    "LENGTH": np.array([[frames]], np.int64),
                }
            ]
        )

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Encode the stretches of all requests."""
        return run_together(requests, self._check, self._run)

    def _check(self, request: Tensors) -> None:
        features = request["FEATURES"]
        if features.ndim != 3 or features.shape[1] != self._bands:
            raise InvalidInputError(
                f"FEATURES has shape {list(features.shape)}; it must be [rows, {self._bands}, frames]"
            )
        _check_lengths(request, "LENGTH", frames=features.shape[2], minimum=1)
        _check_finite(features, "FEATURES")

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        encoded, lengths = self._encoder.encode(
            stack_rows([request["FEATURES"] for request in requests]),
            np.concatenate([column(request["LENGTH"], "LENGTH") for request in requests]),
        )
        rows = [len(request["FEATURES"]) for request in requests]
        return [
            # A request's own rows decide how long its answer is, not its neighbours'.
            {"ENCODED": outputs[:, :, : own.max()], "ENCODED_LENGTH": own[:, None]}
            for outputs, own in zip(split_rows(encoded, rows), split_rows(lengths, rows), strict=True)
        ]


class DecoderService:
    """``ENCODED`` f32 ``[B, D, T']``, ``ENCODED_LENGTH`` i64 ``[B, 1]`` to the tokens of each row.

    Outputs: ``TOKENS``, ``FRAMES``, ``DURATIONS`` i32 and ``CONFIDENCES`` f32 ``[B, N]``, of which
    ``TOKEN_COUNT`` i32 ``[B, 1]`` are real. What comes in pieces carries ``NEXT_TARGET`` i32
    ``[B, 1]``, ``NEXT_HIDDEN`` and ``NEXT_CELL`` f32 ``[B, layers, width]`` and ``NEXT_SKIP`` i32
    ``[B, 1]`` into the next piece's ``TARGET``, ``HIDDEN``, ``CELL`` and ``SKIP``; without them a
    piece is the first.
    """

    def __init__(self, decoder: TransducerDecoder) -> None:
        self._decoder = decoder
        self._state_shape = (decoder.network.layers, decoder.network.width)

    def warm_up(self) -> None:
        """Run once, so that the first real request does not pay for what only the first run does.

        Raises:
            ParleyError: the network cannot run at all.
        """
        silence = np.zeros((1, self._decoder.network.inputs, 1), np.float32)
        self._run([{"ENCODED": silence, "ENCODED_LENGTH": np.array([[1]], np.int64)}])

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Decode the pieces of all requests."""
        return run_together(requests, self._check, self._run)

    def _check(self, request: Tensors) -> None:
        encoded = request["ENCODED"]
        if encoded.ndim != 3:
            raise InvalidInputError(
                f"ENCODED has shape {list(encoded.shape)}; it must be [rows, width, frames]"
            )
        _check_lengths(request, "ENCODED_LENGTH", frames=encoded.shape[2], minimum=0)
        _check_finite(encoded, "ENCODED")
        given = [name for name in CARRIED if name in request]
        if not given:
            return
        if len(given) != len(CARRIED):
            raise InvalidInputError(f"{', '.join(given)} without the rest of {', '.join(CARRIED)}")
        for name in ("HIDDEN", "CELL"):
            if request[name].shape[1:] != self._state_shape:
                raise InvalidInputError(
                    f"{name} must be [rows, {self._state_shape[0]}, {self._state_shape[1]}]"
                )
            _check_finite(request[name], name)
        targets, skip = column(request["TARGET"], "TARGET"), column(request["SKIP"], "SKIP")
        blank = self._decoder.blank
        if (targets < 0).any() or (targets > blank).any() or (skip < 0).any():
            raise InvalidInputError(f"TARGET must be 0 to {blank} and SKIP not negative")

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        rows = [len(request["ENCODED"]) for request in requests]
        tokens, state = self._decoder.decode(
            stack_rows([request["ENCODED"] for request in requests]),
            np.concatenate([column(request["ENCODED_LENGTH"], "ENCODED_LENGTH") for request in requests]),
            _join_states([self._state(request) for request in requests]),
        )
        ends = np.cumsum(rows).tolist()
        return [
            _token_outputs(tokens[end - count : end]) | _state_outputs(state, slice(end - count, end))
            for count, end in zip(rows, ends, strict=True)
        ]

    def _state(self, request: Tensors) -> TransducerState:
        if "TARGET" not in request:
            return self._decoder.initial_state(len(request["ENCODED"]))
        return TransducerState(
            column(request["TARGET"], "TARGET").astype(np.int32),
            request["HIDDEN"],
            request["CELL"],
            column(request["SKIP"], "SKIP").astype(np.int32),
            np.zeros(len(request["ENCODED"]), np.int32),
        )


def _join_states(states: Sequence[TransducerState]) -> TransducerState:
    return TransducerState(
        np.concatenate([state.targets for state in states]),
        np.concatenate([state.hidden for state in states]),
        np.concatenate([state.cell for state in states]),
        np.concatenate([state.skip for state in states]),
        np.concatenate([state.phrase for state in states]),
    )


def _token_outputs(rows: Sequence[Tokens]) -> dict[str, Tensor]:
    def padded(values: list[NDArray[Any]], pad: int) -> Tensor:
        # One column at least: an output without any element is not worth a special case for readers.
        width = max(1, *(len(value) for value in values))
        return np.stack([np.pad(value, (0, width - len(value)), constant_values=pad) for value in values])

    return {
        "TOKENS": padded([row.ids for row in rows], -1),
        "FRAMES": padded([row.frames for row in rows], -1),
        "DURATIONS": padded([row.durations for row in rows], 0),
        "CONFIDENCES": padded([row.confidences for row in rows], 0),
        "TOKEN_COUNT": np.array([[len(row.ids)] for row in rows], np.int32),
    }


def _state_outputs(state: TransducerState, rows: slice) -> dict[str, Tensor]:
    return {
        "NEXT_TARGET": state.targets[rows, None],
        "NEXT_HIDDEN": state.hidden[rows],
        "NEXT_CELL": state.cell[rows],
        "NEXT_SKIP": state.skip[rows, None],
    }


def _check_windows(request: Tensors) -> None:
    counts = column(request["COUNT"], "COUNT")
    if (counts < 0).any() or (counts > request["WINDOWS"].shape[1]).any():
        raise InvalidInputError("COUNT is not within the number of WINDOWS")
    for name in ("WINDOWS", "STATE", "CONTEXT"):
        _check_finite(request[name], name)


def _check_lengths(request: Tensors, name: str, *, frames: int, minimum: int) -> None:
    lengths = column(request[name], name)
    if (lengths < minimum).any() or (lengths > frames).any():
        raise InvalidInputError(f"{name} must be {minimum} to {frames}")


def _check_finite(values: Tensor, name: str) -> None:
    if not np.isfinite(values).all():
        raise InvalidInputError(f"{name} has values that are not finite")

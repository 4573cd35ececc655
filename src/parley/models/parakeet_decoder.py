"""What ``parakeet_decoder`` answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.decoding.batch import RowDecoder, make_decoder
from parley.asr.decoding.hypotheses import Reading
from parley.asr.parakeet.networks import NO_SCORE, OnnxJoint, read_phrases
from parley.errors import InvalidInputError, ParleyError
from parley.inference import Tensor
from parley.runtime.batching import (
    Tensors,
    check_finite,
    check_lengths,
    column,
    run_together,
    stack_rows,
    widen,
)
from parley.runtime.extensions import find_extensions
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.triton.backend import TensorModel

BEAM_SIZE = 4


def beam_size(parameters: Parameters) -> int | None:
    """Hypotheses of the beam search (parameter ``beam_size``); None if ``decoding`` is ``greedy``.

    Raises:
        ModelLoadingError: a setting has a value that it cannot have.
    """
    if parameters.choice("decoding", "greedy", ("greedy", "beam")) == "greedy":
        return None
    return parameters.integer("beam_size", BEAM_SIZE, minimum=1, maximum=64)


class DecoderService:
    """``ENCODED`` f32 ``[B, D, T']``, ``ENCODED_LENGTH`` i64 ``[B, 1]`` to the tokens of each row.

    An ``ENCODED`` with D = 1 stands for the checkpoint's D equal values.

    Outputs: ``TOKENS``, ``FRAMES``, ``DURATIONS`` i32 and ``CONFIDENCES`` f32 ``[B, N]``, of which
    ``TOKEN_COUNT`` i32 ``[B, 1]`` are real. ``ALTERNATIVES`` i32 ``[B, A, N]``, filled up with -1, are
    the readings of each row, best first, with ``SCORES`` f32 ``[B, A]``; ``NO_SCORE``: there is none,
    as everywhere in greedy decoding. For phrases that are boosted see :mod:`parley.asr.parakeet.networks`.
    """

    def __init__(self, decoder: RowDecoder) -> None:
        self._decoder = decoder

    def warm_up(self) -> None:
        """Run once, so that the first real request does not pay for what only the first run does.

        Raises:
            ParleyError: the network cannot run at all.
        """
        silence = np.zeros((1, self._decoder.network.inputs, 1), np.float32)
        self._run([{"ENCODED": silence, "ENCODED_LENGTH": np.array([[1]], np.int64)}])

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Decode the rows of all requests."""
        widened = [widen(request, "ENCODED", self._decoder.network.inputs) for request in requests]
        return run_together(widened, self._check, self._run)

    def _check(self, request: Tensors) -> None:
        encoded = request["ENCODED"]
        width = self._decoder.network.inputs
        if encoded.ndim != 3 or encoded.shape[1] != width:
            raise InvalidInputError(
                f"ENCODED has shape {list(encoded.shape)}; it must be [rows, {width}, frames]"
            )
        check_lengths(request, "ENCODED_LENGTH", frames=encoded.shape[2], minimum=0)
        check_finite(encoded, "ENCODED")
        read_phrases(request, self._decoder.blank)

    def _run(self, requests: Sequence[Tensors]) -> list[Tensors]:
        rows = [len(request["ENCODED"]) for request in requests]
        boosting = [
            automaton for request in requests for automaton in read_phrases(request, self._decoder.blank)
        ]
        readings, _ = self._decoder.decode(
            stack_rows([request["ENCODED"] for request in requests]),
            np.concatenate([column(request["ENCODED_LENGTH"], "ENCODED_LENGTH") for request in requests]),
            self._decoder.initial(sum(rows)),
            boosting if any(len(automaton.bonus) for automaton in boosting) else None,
        )
        ends = np.cumsum(rows).tolist()
        return [_token_outputs(readings[end - count : end]) for count, end in zip(rows, ends, strict=True)]


def _token_outputs(readings: Sequence[Reading]) -> dict[str, Tensor]:
    rows = [reading.best for reading in readings]
    nbest = [
        [(np.concatenate([reading.settled.ids, one.tokens.ids]), one.score) for one in reading.nbest]
        for reading in readings
    ]
    # One column at least, as below.
    places = max(1, *(len(own) for own in nbest))
    longest = max([1, *(len(ids) for own in nbest for ids, _ in own)])
    alternatives = np.full((len(rows), places, longest), -1, np.int32)
    scores = np.full(alternatives.shape[:2], NO_SCORE, np.float32)
    for row, own in enumerate(nbest):
        for place, (ids, score) in enumerate(own):
            alternatives[row, place, : len(ids)] = ids
            scores[row, place] = score

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
        "ALTERNATIVES": alternatives,
        "SCORES": scores,
    }


def open_decoder(parameters: Parameters, device_id: int) -> DecoderService:
    """The service that the parameter ``engine`` names, ready to serve.

    Parameters of the model:
        ``engine``: ``onnx``, or ``torch``, whose greedy decoding stays on the device.
        ``decoding``, ``beam_size``: see :func:`beam_size`.
        ``piece_frames``: for torch, encoder frames that are decoded at once; what is longer takes several.
        Others: those of :func:`parley.runtime.onnx.open_configured` or
            :func:`parley_torch.models.recognizers.device_settings`.

    Raises:
        ModelLoadingError: the weights or a setting are not usable.
    """
    service = DecoderService(
        _ENGINES[parameters.choice("engine", "onnx", tuple(_ENGINES))](parameters, device_id)
    )
    service.warm_up()
    return service


def load_model(pb_utils: Any, parameters: Parameters) -> TensorModel:
    """What ``model.py`` of ``parakeet_decoder`` runs; see :func:`open_decoder`."""
    return TensorModel(pb_utils, open_decoder(parameters, parameters.device_id).serve)


def _open_onnx(parameters: Parameters, device_id: int) -> RowDecoder:
    export = checkpoint.load(resolve_weights(parameters, checkpoint.DEFAULT, checkpoint.FILES))
    session = open_configured(export.decoder, parameters, device_id=device_id)
    return make_decoder(export, OnnxJoint(session), beam_size=beam_size(parameters))


_ENGINES: Mapping[str, Callable[[Parameters, int], RowDecoder]] = {
    "onnx": _open_onnx,
    **find_extensions("decoder_engines"),
}
"""Each loads a decoder as the parameters say, on the GPU of a number."""

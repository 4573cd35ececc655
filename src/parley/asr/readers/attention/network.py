"""Encoder and decoder on ONNX Runtime: the decoder attends to the audio and to the tokens before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx import Stop

Past: TypeAlias = dict[str, NDArray[np.float32]]
"""What the decoder remembers: keys and values of its layers by the name of the input."""
_PAST, _PRESENT, _OWN = "past_key_values", "present", ".decoder."
_LOGITS = "logits"


@dataclass(frozen=True)
class EncodedAudio:
    """Encoded audio."""

    states: NDArray[np.float32]
    """f32 ``[1, T, D]``."""
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further inputs of the decoder, the same in all of its steps."""


class AttentionNetwork(Protocol):
    """The networks of a model."""

    def encode(self, audio: NDArray[np.float32], stop: Stop) -> EncodedAudio:
        """Encode audio: f32 ``[n]`` within ±1, 16 kHz.

        Raises:
            InferenceError: the encoder failed.
            StoppedError: it was stopped.
        """
        ...

    def step(
        self, encoded: EncodedAudio, tokens: Sequence[int], past: Past | None
    ) -> tuple[NDArray[np.float32], Past]:
        """Decode one step.

        Args:
            encoded: audio, encoded.
            tokens: those that follow what ``past`` has seen; several in the first step only.
            past: keys and values of the step before; None: this is the first.

        Returns:
            Scores of the token after each, f32 ``[tokens, V]``, and keys and values for the next step.

        Raises:
            InferenceError: the decoder failed.
        """
        ...


class CachedDecoder:
    """A decoder as Optimum exports it (``decoder_model_merged``); thread-safe.

    One recording at a time: in a batch the quantised layers share their scales, so that a text would depend
    on the audio beside it, and padding would make it worse.
    """

    def __init__(self, session: Any, *, tokens: int) -> None:
        """Use a session.

        Args:
            session: of the file.
            tokens: size of the vocabulary.

        Raises:
            ModelLoadingError: it is no such decoder, or has another vocabulary.
        """
        self._session = session
        self._nothing = {
            tensor.name: np.zeros((0, tensor.shape[1], 1, tensor.shape[3]), np.float32)
            for tensor in session.get_inputs()
            if tensor.name.startswith(_PAST)
        }
        # Attention weights, which some exports have too, are not fetched.
        shapes = {
            tensor.name: tensor.shape
            for tensor in session.get_outputs()
            if tensor.name == _LOGITS or tensor.name.startswith(_PRESENT)
        }
        self._outputs = list(shapes)
        after = {name.replace(_PRESENT, _PAST) for name in shapes if name != _LOGITS}
        if not self._nothing or set(self._nothing) != after:
            raise ModelLoadingError("the decoder has other keys and values going in than coming out")
        if _LOGITS not in shapes or shapes[_LOGITS][-1] != tokens:
            width = shapes.get(_LOGITS, ["no"])[-1]
            raise ModelLoadingError(f"the decoder has {width} tokens; the vocabulary has {tokens}")

    def step(
        self, encoded: EncodedAudio, tokens: Sequence[int], past: Past | None
    ) -> tuple[NDArray[np.float32], Past]:
        """See :meth:`AttentionNetwork.step`."""
        feed = {
            **(past or self._nothing),
            **encoded.more,
            "input_ids": np.array([tokens], np.int64),
            "encoder_hidden_states": encoded.states,
            "use_cache_branch": np.array([past is not None]),
        }
        try:
            outputs = dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the decoder failed: {error}") from error
        logits = outputs.pop(_LOGITS)[0]
        new = {name.replace(_PRESENT, _PAST): values for name, values in outputs.items()}
        # Only the first step computes what comes from the audio; later ones return nothing in its place.
        return logits, new if past is None else past | {name: new[name] for name in new if _OWN in name}


def run_encoder(
    session: Any, feed: Mapping[str, NDArray[Any]], output: str, stop: Stop
) -> NDArray[np.float32]:
    """Run an encoder: f32 ``[1, T, D]``.

    Raises:
        InferenceError: it failed, or its output is not finite.
        StoppedError: it was stopped.
    """
    (states,) = stop.run(session, feed, [output])
    if not np.isfinite(states).all():
        raise InferenceError("the encoder's output is not finite")
    return np.asarray(states, np.float32)

"""Moonshine's networks on ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError

Past: TypeAlias = dict[str, NDArray[np.float32]]
"""What the decoder remembers: keys and values of its layers by the name of the input."""
SHORTEST = 1_600
"""Samples that the encoder needs at least (100 ms)."""
_PAST, _PRESENT, _OWN = "past_key_values", "present", ".decoder."


@dataclass(frozen=True)
class Heard:
    """Encoded audio."""

    states: NDArray[np.float32]
    """f32 ``[1, T, D]``."""
    mask: NDArray[np.int64]
    """i64 ``[1, samples]``, all ones: the decoder wants the mask of the audio, not of the vectors."""


class Network(Protocol):
    """The two networks. A failure is raised as a :class:`parley.errors.InferenceError`."""

    def encode(self, audio: NDArray[np.float32]) -> Heard:
        """Hear audio: f32 ``[n]`` within ±1, 16 kHz, at least :data:`SHORTEST`."""
        ...

    def step(self, heard: Heard, token: int, past: Past | None) -> tuple[NDArray[np.float32], Past]:
        """Continue a text.

        Args:
            heard: what it is the text of.
            token: the last one.
            past: what the step before returned; None: this is the first.

        Returns:
            Raw scores of the next token, f32 ``[V]``, and what the next step needs.
        """
        ...


class OnnxNetwork:
    """:class:`Network` of two sessions, which any thread may use.

    Audio is heard one at a time: in a batch the quantised layers share their scales, so that a text would
    depend on the audio beside it, and a padded one be worse.
    """

    def __init__(self, encoder: Any, decoder: Any, *, tokens: int) -> None:
        """Use the sessions.

        Args:
            encoder: of ``encoder_model.ort``.
            decoder: of ``decoder_model_merged.ort``.
            tokens: size of the vocabulary.

        Raises:
            ModelLoadingError: they are none of Moonshine's, or do not go together.
        """
        self._encoder = encoder
        self._decoder = decoder
        shapes = {tensor.name: tensor.shape for tensor in decoder.get_inputs()}
        self._nothing = {
            name: np.zeros((0, shape[1], 1, shape[3]), np.float32)
            for name, shape in shapes.items()
            if name.startswith(_PAST)
        }
        self._outputs = [tensor.name for tensor in decoder.get_outputs()]
        after = {name.replace(_PRESENT, _PAST) for name in self._outputs if name.startswith(_PRESENT)}
        if not self._nothing or set(self._nothing) != after:
            raise ModelLoadingError("the decoder has other keys and values going in than coming out")
        width = decoder.get_outputs()[self._outputs.index("logits")].shape[-1]
        if width != tokens:
            raise ModelLoadingError(f"the decoder knows {width} tokens; the vocabulary has {tokens}")

    def encode(self, audio: NDArray[np.float32]) -> Heard:
        """See :meth:`Network.encode`."""
        mask = np.ones((1, len(audio)), np.int64)
        feed = {"input_values": audio[None], "attention_mask": mask}
        try:
            (states,) = self._encoder.run(None, feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the encoder failed on {len(audio)} samples: {error}") from error
        if not np.isfinite(states).all():
            raise InferenceError("the encoder's output is not finite")
        return Heard(states, mask)

    def step(self, heard: Heard, token: int, past: Past | None) -> tuple[NDArray[np.float32], Past]:
        """See :meth:`Network.step`."""
        feed = {
            **(past or self._nothing),
            "input_ids": np.array([[token]], np.int64),
            "encoder_hidden_states": heard.states,
            "encoder_attention_mask": heard.mask,
            "use_cache_branch": np.array([past is not None]),
        }
        try:
            outputs = dict(zip(self._outputs, self._decoder.run(None, feed), strict=True))
        except Exception as error:  # as above
            raise InferenceError(f"the decoder failed: {error}") from error
        logits = outputs.pop("logits")[0, -1]
        new = {name.replace(_PRESENT, _PAST): values for name, values in outputs.items()}
        # Only the first step computes what comes from the audio; later ones return nothing in its place.
        return logits, new if past is None else past | {name: new[name] for name in new if _OWN in name}

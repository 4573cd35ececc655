"""Answers to the Triton requests of ``s3gen``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidMessageError, ParleyError
from parley.inference import Tensor, struct_tensor, tensor_bytes
from parley.serving.parameters import Parameters
from parley.serving.responder import Responder
from parley.serving.tensors import read_tensors
from parley.tts.s3gen.batch import Voice
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN
from parley.tts.s3gen.estimator import MEL_BANDS
from parley.tts.s3gen.flow import SPEAKER_SIZE
from parley.tts.s3gen.loading import load_s3gen
from parley.tts.s3gen.messages import AudioChunk, OpenUtterance, PushTokens, S3GenRequest
from parley.tts.s3gen.service import S3GenService

_requests: msgspec.json.Decoder[S3GenRequest] = msgspec.json.Decoder(S3GenRequest)
_NO_TOKENS = np.zeros(0, np.int64)
_MAX_PROMPT_SENT = 1_000  # tokens that are read at all


class _TritonSink:
    """A Triton request as the place where audio goes."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def send(self, chunk: AudioChunk, audio: NDArray[np.int16]) -> bool:
        """Send a piece; False when the request has ended or its caller has gone away."""
        sent = self._responder.send({"CHUNK": struct_tensor(chunk), "AUDIO": audio})
        return sent and not self._responder.cancelled

    def finish(self) -> None:
        """End the request."""
        self._responder.finish()

    def fail(self, error: ParleyError) -> None:
        """End the request with an error."""
        self._responder.fail(error)


class S3GenModel:
    """What ``model.py`` of ``s3gen`` runs.

    Decoupled and without Triton's sequences: an utterance's id ties its requests together. All
    utterances are served by one instance and its one thread (see
    :mod:`parley.tts.s3gen.service`), so that one run of the flow serves many; a request never
    waits for a run, and an utterance that ends by itself needs no END from its caller, which a
    stopping server would not let through.

    Args:
        pb_utils: Triton's module.
        parameters: see :func:`parley.tts.s3gen.loading.load_s3gen`.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        self._pb = pb_utils
        loaded = load_s3gen(parameters, "chatterbox")
        self._max_prompt = loaded.max_prompt
        self._service = S3GenService(
            loaded.synthesizer, loaded.plan, loaded.limits, padded=loaded.buckets.round_frames
        )

    def accept(self, requests: list[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        for request in requests:
            responder = Responder(self._pb, request)
            try:
                self._begin(responder, read_tensors(request.inputs()))
            except Exception as error:  # noqa: BLE001 - answered and logged
                responder.fail(error)

    def close(self) -> None:
        """End every utterance and the thread."""
        self._service.close()

    def _begin(self, responder: Responder, tensors: Mapping[str, Tensor]) -> None:
        try:
            message = _requests.decode(tensor_bytes(tensors["REQUEST"]))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidMessageError(f"request cannot be read: {error}") from error
        tokens = tensors.get("TOKENS", _NO_TOKENS).reshape(-1)
        if isinstance(message, OpenUtterance):
            self._service.open(message, read_voice(tensors, self._max_prompt), tokens, _TritonSink(responder))
            return
        if isinstance(message, PushTokens):
            self._service.push(message, tokens)
        else:
            self._service.stop(message.utterance_id)
        responder.finish()


def read_voice(tensors: Mapping[str, Tensor], max_prompt: int) -> Voice:
    """The voice of a request, with at most ``max_prompt`` tokens from the end of its prompt.

    Raises:
        InvalidMessageError: a tensor is missing or does not fit the others.
    """
    if missing := [name for name in ("SPEAKER", "PROMPT_TOKENS", "PROMPT_MEL") if name not in tensors]:
        raise InvalidMessageError(f"no {', '.join(missing)}")
    speaker, tokens = tensors["SPEAKER"].reshape(-1), tensors["PROMPT_TOKENS"].reshape(-1)
    mel = tensors["PROMPT_MEL"]
    if len(speaker) != SPEAKER_SIZE:
        raise InvalidMessageError(f"SPEAKER has {len(speaker)} values; it must have {SPEAKER_SIZE}")
    if len(tokens) > _MAX_PROMPT_SENT:
        raise InvalidMessageError(f"PROMPT_TOKENS has {len(tokens)} tokens; at most {_MAX_PROMPT_SENT}")
    if mel.shape != (FRAMES_PER_TOKEN * len(tokens), MEL_BANDS):
        raise InvalidMessageError(
            f"PROMPT_MEL is {list(mel.shape)}; for {len(tokens)} tokens it must be "
            f"[{FRAMES_PER_TOKEN * len(tokens)}, {MEL_BANDS}]"
        )
    if not (np.isfinite(speaker).all() and np.isfinite(mel).all()):
        raise InvalidMessageError("SPEAKER or PROMPT_MEL holds values that are not numbers")
    first = max(0, len(tokens) - max_prompt)
    return Voice(
        speaker.astype(np.float32),
        tokens[first:].astype(np.int64),
        mel[FRAMES_PER_TOKEN * first :].astype(np.float32),
    )

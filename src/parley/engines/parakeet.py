"""``parakeet_tdt`` as a :class:`parley.engines.base.Recognizer`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.errors import ParleyError, SessionNotFoundError
from parley.inference import ModelClient, ModelRequest, SequenceFlags, struct_tensor, tensor_struct

MODEL = "parakeet_tdt"
_NOTHING = np.zeros(0, np.int16)
_PLAIN = (
    AsrRequest()
)  # of nearly every piece; a text as a tensor takes more time than the rest of its request
_log = logging.getLogger(__name__)


class ParakeetRecognizer:
    """One stream of audio: one Triton sequence of ``parakeet_tdt``.

    A :meth:`push` that the model refuses leaves the stream as it was, so that the same piece can be
    pushed again; after a deadline it is unknown whether the piece was processed.
    """

    def __init__(
        self, client: ModelClient, correlation_id: str, *, model: str = MODEL, timeout_s: float = 5.0
    ) -> None:
        """Prepare a stream; nothing is sent before :meth:`start`.

        Args:
            client: sends requests to the model.
            correlation_id: of the sequence; unique among the open streams of the model.
            model: name of the model.
            timeout_s: for each reply.
        """
        self._client = client
        self._id = correlation_id
        self.model = model
        """Name of the model."""
        self._timeout_s = timeout_s
        self._open = False
        self._turn_over = False

    async def languages(self) -> Sequence[str]:
        """See :class:`parley.engines.base.Recognizer`."""
        return (await self._try(AsrOptions(language=""))).languages

    async def check(self, options: AsrOptions) -> None:
        """Check whether :meth:`start` would accept the options, with a sequence of one request.

        A refused START leaves a sequence behind, and a second request would have to end it.

        Raises:
            ParleyError: as :meth:`start`.
        """
        await self._try(options)

    async def _try(self, options: AsrOptions) -> AsrReply:
        flags = SequenceFlags(self._id, start=True, end=True)
        return await self._send(_NOTHING, AsrRequest(options=options), flags)

    async def start(self, options: AsrOptions) -> None:
        """Open the stream.

        Raises:
            InvalidMessageError: the options are out of range.
            UnsupportedLanguageError: the model does not understand the language.
            TooManySessionsError: the model holds as many streams as it may.
            InferenceError: the model failed or did not answer in time.
        """
        # Open from here on: after a failure the server may have the sequence; a superfluous END does no harm.
        self._open = True
        await self._call(_NOTHING, AsrRequest(options=options), start=True)

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        """Process the next piece: i16 ``[n]``, 16 kHz mono.

        Raises:
            InvalidAudioError: the piece is longer than the model takes.
            SessionNotFoundError: the stream is not open, or was idle for too long.
            InferenceError: the model failed or did not answer in time.
        """
        return await self._push(audio, flush=False)

    def begin_turn(self) -> None:
        """Later audio is of another turn: it is not decoded together with earlier utterances."""
        self._turn_over = True

    async def flush(self, audio: NDArray[np.int16] = _NOTHING) -> AsrReply:
        """End the current utterance after ``audio``; arguments and errors are those of :meth:`push`.

        Its final transcript may come with the reply to a later piece, also to an empty one.
        """
        return await self._push(audio, flush=True)

    async def _push(self, audio: NDArray[np.int16], *, flush: bool) -> AsrReply:
        turn_over, self._turn_over = self._turn_over, False
        try:
            return await self._call(audio, AsrRequest(flush=flush, turn_over=turn_over))
        except ParleyError:
            self._turn_over = self._turn_over or turn_over  # the piece is pushed again
            raise

    async def close(self) -> None:
        """End the stream; safe to call twice and after a failure."""
        if not self._open:
            return
        self._open = False
        try:
            await self._send(_NOTHING, AsrRequest(), SequenceFlags(self._id, end=True))
        except ParleyError as error:
            # The model closes an idle stream by itself.
            _log.info("audio stream %s was not ended: %s", self._id, error)

    async def _call(self, audio: NDArray[np.int16], request: AsrRequest, *, start: bool = False) -> AsrReply:
        if not self._open:
            raise SessionNotFoundError(f"audio stream {self._id} is not open")
        return await self._send(audio, request, SequenceFlags(self._id, start=start))

    async def _send(self, audio: NDArray[np.int16], request: AsrRequest, flags: SequenceFlags) -> AsrReply:
        inputs = {"AUDIO": audio.reshape(1, -1)}
        if request != _PLAIN:
            inputs["REQUEST"] = struct_tensor(request, batched=True)
        response = await self._client.infer(
            ModelRequest(
                self.model,
                inputs,
                ("REPLY",),
                sequence=flags,
                timeout_s=self._timeout_s,
                frees=flags.end,
            )
        )
        return tensor_struct(response["REPLY"], AsrReply)

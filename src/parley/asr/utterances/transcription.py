"""What the models for whole recordings do with their requests.

A request is taken over at once and answered by a thread that brings all recordings forward
together, round by round: one that comes while another is being transcribed joins the next round, and
each is answered as soon as it is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.asr.segmenter.segmentation import PER_MS
from parley.asr.utterances.recordings import SegmentRecording, SegmentRounds
from parley.errors import (
    InvalidAudioError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.inference import Tensor, decode_request
from parley.languages import understood_language

_decoder = msgspec.json.Decoder(TranscribeRequest)
_DEFAULTS = TranscribeRequest()
_log = logging.getLogger(__name__)


class TranscriptReceiver(Protocol):
    """Receives a transcript."""

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled."""
        ...

    def send(self, reply: TranscribeReply) -> None:
        """Send the transcript."""
        ...

    def fail(self, error: BaseException) -> None:
        """Send the error."""
        ...


@dataclass(frozen=True)
class TranscriptionLimits:
    """What is taken."""

    languages: Sequence[str]
    max_audio_ms: int
    max_pending_ms: int
    """Audio of all recordings that are not answered yet."""
    written_in: str = ""
    """The language of every text; empty: the model understands several, whatever is taken of them."""


def read_recording(
    audio: Tensor, message: Tensor | bytes, limits: TranscriptionLimits
) -> tuple[Tensor, TranscribeRequest]:
    """The samples of a request, i16 ``[n]``, and its message, whose language is one of the model's.

    Raises:
        InvalidAudioError: the recording is empty, too long, or of the wrong kind.
        InvalidMessageError: the message cannot be read.
        UnsupportedLanguageError: the model does not understand the language.
    """
    request = decode_request(message, _decoder, _DEFAULTS)
    language = understood_language(request.language, limits.languages)
    return _check_audio(audio, limits), msgspec.structs.replace(request, language=language)


def _check_audio(audio: Tensor, limits: TranscriptionLimits) -> Tensor:
    """The samples, i16 ``[n]``.

    Raises:
        InvalidAudioError: the recording is empty, too long, or of the wrong kind.
    """
    if audio.dtype != np.int16 or audio.size != audio.shape[-1]:
        raise InvalidAudioError(
            f"audio is {audio.dtype} {list(audio.shape)}; it must be int16, one recording"
        )
    if not audio.size:
        raise InvalidAudioError("the recording is empty")
    if audio.size > limits.max_audio_ms * PER_MS:
        raise InvalidAudioError(
            f"the recording lasts {audio.size / PER_MS / 1000:.1f} s; "
            f"at most {limits.max_audio_ms / 1000:g} s are taken"
        )
    return audio.reshape(-1)


class TranscriptionService:
    """Owns the recordings until they are answered."""

    def __init__(
        self,
        begin: Callable[[NDArray[np.int16], TranscribeRequest], SegmentRecording],
        rounds: SegmentRounds,
        limits: TranscriptionLimits,
    ) -> None:
        """Start the thread."""
        self._begin = begin
        self._rounds = rounds
        self._limits = limits
        self._work: list[tuple[SegmentRecording, TranscriptReceiver]] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="transcription", daemon=True)
        self._thread.start()

    def submit(self, audio: Tensor, message: Tensor | bytes, caller: TranscriptReceiver) -> TranscribeRequest:
        """Take over a request, and return its message.

        Args:
            audio: i16 ``[n]`` or ``[1, n]``: 16 kHz mono.
            message: JSON of :class:`parley.asr.messages.TranscribeRequest`; empty: its defaults.
            caller: is answered later, by the thread.

        Raises:
            InvalidAudioError: the recording is empty, too long, or of the wrong kind.
            InvalidMessageError: the message cannot be read.
            UnsupportedLanguageError: the model does not understand the language.
            OverloadedError: too much audio waits already.
            ShuttingDownError: after :meth:`close`.
        """
        samples, request = read_recording(audio, message, self._limits)
        recording = self._begin(samples, request)
        with self._changed:
            if self._closing:
                raise ShuttingDownError("the model is being unloaded")
            waiting = sum(other.samples for other, _ in self._work)
            if self._work and waiting + recording.samples > self._limits.max_pending_ms * PER_MS:
                raise OverloadedError(
                    f"{waiting // PER_MS // 1000} s of audio wait to be transcribed; try again later"
                )
            self._work.append((recording, caller))
            self._changed.notify()
        return request

    def close(self, timeout_s: float) -> None:
        """Refuse what is not done yet, and end the thread after its round."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("transcription did not stop within %g s", timeout_s)

    def _serve(self) -> None:
        while work := self._next_work():
            try:
                self._rounds.run([recording for recording, _ in work])
            except Exception as error:  # noqa: BLE001 - sent to all callers, who log it
                for recording, _ in work:
                    recording.error = ParleyError(f"{type(error).__name__}: {error}")
                _log.exception("transcription failed")
            for recording, caller in work:
                self._settle(recording, caller)

    def _next_work(self) -> list[tuple[SegmentRecording, TranscriptReceiver]]:
        """Wait for recordings; none when the service closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._closing)
            if not self._closing:
                return list(self._work)
            abandoned, self._work = self._work, []
        for _, caller in abandoned:
            caller.fail(ShuttingDownError("the model is being unloaded"))
        return []

    def _with_language(self, reply: TranscribeReply) -> TranscribeReply:
        """The reply; what a model of one language wrote is in that."""
        if reply.language or not reply.text:
            return reply
        return msgspec.structs.replace(reply, language=self._limits.written_in)

    def _settle(self, recording: SegmentRecording, caller: TranscriptReceiver) -> None:
        """Answer a recording that is done or has failed, and drop one whose request was cancelled."""
        try:
            if recording.error is not None:
                caller.fail(recording.error)
            elif recording.done:
                caller.send(self._with_language(recording.reply()))
            elif not caller.cancelled:
                return
            else:
                caller.fail(ShuttingDownError("the request was cancelled"))
        except Exception:  # noqa: BLE001 - logged; the thread must live on for the others
            _log.exception("a transcript could not be sent")
        with self._changed:
            self._work.remove((recording, caller))

"""The ends of the ensemble for short recordings: audio to features, and tokens to a transcript.

Between them are the models of encoder and decoder. As long as the speech of a recording is one stretch, the
text is that of ``parakeet_transcribe``. Here a recording with pauses is read from its first sound to its last
one, and not in parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.words import alternatives_of, confidence_of, text_of, words_of
from parley.asr.features import LogMel
from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.asr.parakeet.networks import TOKEN_OUTPUTS, DecodedPiece, pad_features, read_decoded
from parley.asr.segmenter.segmentation import FULL_SCALE, PER_MS, Detector
from parley.asr.utterances.recordings import SegmentRecordingLimits
from parley.asr.utterances.speech_search import SpeechSearch, search_together
from parley.asr.utterances.transcription import TranscriptionLimits, read_recording
from parley.errors import InvalidAudioError, InvalidInputError, InvalidMessageError, ParleyError
from parley.inference import Tensor, decode_request, struct_tensor
from parley.runtime.batching import check_finite, column

_decoder = msgspec.json.Decoder(TranscribeRequest)
_DEFAULTS = TranscribeRequest()
_NO_SPEECH = -1
"""In ``SPAN``, in place of the length of the speech."""

Tensors = Mapping[str, Tensor]


@dataclass
class _Clip:
    """A recording while it is searched for speech."""

    search: SpeechSearch
    samples: int
    error: ParleyError | None = None


class RecordingFeatures:
    """Recordings to the encoder's inputs.

    Inputs: ``AUDIO`` i16 ``[B, n]``, ``REQUEST`` (JSON of ``TranscribeRequest``) ``[B, 1]``. Outputs:
    ``FEATURES`` f32 ``[B, bands, T]``, ``LENGTH`` i64 ``[B, 1]`` of them, and ``SPAN`` i64 ``[B, 3]``:
    milliseconds of the recording, of the beginning of speech in it (negative in the silence that is put
    before it), and of speech; -1: there is none.
    """

    def __init__(
        self, mel: LogMel, detector: Detector, recording: SegmentRecordingLimits, limits: TranscriptionLimits
    ) -> None:
        self._mel = mel
        self._detector = detector
        self._recording = recording
        self._limits = limits

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """The features of each request, or its error; all are searched for speech together."""
        begun = [self._begin(request) for request in requests]
        clips = [clip for own in begun if not isinstance(own, ParleyError) for clip in own]
        while any(clip.search.track is not None for clip in clips if clip.error is None):
            search_together([clip for clip in clips if clip.error is None], self._detector)
        return [own if isinstance(own, ParleyError) else self._finish(own) for own in begun]

    def _begin(self, request: Tensors) -> list[_Clip] | ParleyError:
        try:
            audio, messages = request["AUDIO"], request["REQUEST"].reshape(-1)
            if audio.ndim != 2 or len(audio) != len(messages):
                raise InvalidInputError(f"AUDIO has shape {list(audio.shape)} for {len(messages)} REQUEST")
            return [self._read(row, message) for row, message in zip(audio, messages, strict=True)]
        except ParleyError as error:
            return error

    def _read(self, audio: Tensor, message: bytes) -> _Clip:
        samples, request = read_recording(audio, message, self._limits)
        if request.phrases:
            raise InvalidMessageError("the ensemble takes no phrases; parakeet_transcribe does")
        search = SpeechSearch(samples, self._recording.vad, self._recording.preroll_ms)
        return _Clip(search, len(samples))

    def _finish(self, clips: Sequence[_Clip]) -> Tensors | ParleyError:
        try:
            made = [self._features(clip) for clip in clips]
        except ParleyError as error:
            return error
        features, lengths = pad_features([own for own, _ in made])
        return {
            "FEATURES": features,
            "LENGTH": lengths[:, None],
            "SPAN": np.array([span for _, span in made], np.int64),
        }

    def _features(self, clip: _Clip) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
        if clip.error is not None:
            raise clip.error
        duration_ms = clip.samples // PER_MS
        stretches = clip.search.stretches
        if not stretches:
            return np.zeros((self._mel.bands, 0), np.float32), (duration_ms, 0, _NO_SPEECH)
        begin, end = stretches[0][0], stretches[-1][1]
        longest_ms = self._recording.window.longest_ms
        if end - begin > longest_ms * PER_MS:
            raise InvalidAudioError(
                f"the speech lasts {(end - begin) / PER_MS / 1000:.1f} s; the ensemble takes "
                f"{longest_ms / 1000:.1f} s, parakeet_transcribe any length"
            )
        samples = clip.search.audio[begin:end].astype(np.float32) / FULL_SCALE
        span = duration_ms, begin // PER_MS - clip.search.lead_ms, (end - begin) // PER_MS
        return self._mel.normalized(self._mel.offline(samples)), span


@dataclass
class RecordingTexts:
    """What was decoded to transcripts.

    Inputs: the decoder's outputs but for its state, and ``SPAN`` and ``REQUEST`` of
    :class:`RecordingFeatures`. Output: ``REPLY`` (JSON of ``TranscribeReply``) ``[B, 1]``.
    """

    checkpoint: Checkpoint
    names: tuple[str, ...] = field(default=(*TOKEN_OUTPUTS, "SPAN", "REQUEST"), init=False)
    """Of all inputs."""

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """The transcripts of each request, or its error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Tensors) -> Tensors | ParleyError:
        try:
            rows = {len(request[name]) for name in self.names}
            shapes = request["SPAN"].shape[1:], request["REQUEST"].shape[1:]
            if len(rows) != 1 or rows == {0} or shapes != ((3,), (1,)):
                raise InvalidInputError(
                    "the inputs have no rows or not as many, SPAN is not [rows, 3], or REQUEST not [rows, 1]"
                )
            self._check_tokens(request)
            pieces = read_decoded(request)
            messages, spans = request["REQUEST"].reshape(-1), request["SPAN"].tolist()
            replies = [
                self._reply(piece, tuple(span), decode_request(message, _decoder, _DEFAULTS))
                for piece, span, message in zip(pieces, spans, messages, strict=True)
            ]
        except ParleyError as error:
            return error
        return {"REPLY": np.concatenate([struct_tensor(reply, batched=True) for reply in replies])}

    def _check_tokens(self, request: Tensors) -> None:
        """Raises InvalidInputError where tokens are not the checkpoint's, or not as many as is said."""
        columns = [request[name] for name in ("TOKENS", "FRAMES", "DURATIONS", "CONFIDENCES")]
        alternatives, scores = request["ALTERNATIVES"], request["SCORES"]
        shape = columns[0].shape
        if len(shape) != 2 or any(own.shape != shape for own in columns):
            raise InvalidInputError("TOKENS, FRAMES, DURATIONS and CONFIDENCES differ in their shapes")
        if alternatives.ndim != 3 or alternatives.shape[:2] != scores.shape:
            raise InvalidInputError("ALTERNATIVES must be [rows, readings, tokens], SCORES [rows, readings]")
        counts = column(request["TOKEN_COUNT"], "TOKEN_COUNT")
        if (counts < 0).any() or (counts > shape[1]).any():
            raise InvalidInputError(f"TOKEN_COUNT must be 0 to {shape[1]}")
        check_finite(columns[3], "CONFIDENCES")
        real = np.arange(shape[1]) < counts[:, None]
        ids = np.concatenate([columns[0][real], alternatives[alternatives >= 0]])
        known = len(self.checkpoint.vocabulary)
        if (ids < 0).any() or (ids >= known).any():
            raise InvalidInputError(f"a token is outside 0 to {known - 1}")

    def _reply(
        self, piece: DecodedPiece, span: tuple[int, int, int], request: TranscribeRequest
    ) -> TranscribeReply:
        duration_ms, begin_ms, speech_ms = span
        if speech_ms == _NO_SPEECH:
            return TranscribeReply(text="", duration_ms=duration_ms, speech_ms=0)
        words = [
            # Times in the silence that was put before the recording become 0.
            msgspec.structs.replace(word, start_ms=max(word.start_ms, 0), end_ms=max(word.end_ms, 0))
            for word in words_of(piece.tokens, self.checkpoint, offset_ms=begin_ms)
        ]
        return TranscribeReply(
            text=text_of(words),
            confidence=confidence_of(words),
            words=words if request.words else [],
            alternatives=alternatives_of(piece.alternatives, self.checkpoint, request.nbest),
            duration_ms=duration_ms,
            speech_ms=speech_ms + min(begin_ms, 0),
        )

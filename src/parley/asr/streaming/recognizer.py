"""Recognising the chunks of many utterances together, with their state in slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.batch import RowDecoder
from parley.asr.features import SILENCE, BatchedLogMel, LogMel
from parley.asr.service import milliseconds
from parley.asr.streaming.encoder import HISTORY, CacheAwareEncoder, Rows, SlotArrays, put, take
from parley.asr.streaming.utterance import StreamingUtterance
from parley.errors import InferenceError, ModelLoadingError, ParleyError
from parley.runtime.batching import RowsNotFiniteError

_HISTORY = "history"


class StepResult(Protocol):
    """What became of the utterances of a step."""

    utterances: Sequence[StreamingUtterance]
    """Those that had a chunk."""
    encoder_ms: float
    """Time of all calls (milliseconds), the front end's included."""
    decoder_ms: float

    def keep(self, slots: Sequence[int]) -> None:
        """Keep the new state of these slots, as far as they were part of the step."""
        ...


class Recognizer(Protocol):
    """Owns the slots: what is remembered of every utterance."""

    def acquire(self) -> int:
        """Take a slot for a new utterance.

        Raises:
            OverloadedError: all slots are taken.
        """
        ...

    def release(self, slot: int) -> None:
        """Give a slot back."""
        ...

    def write(self, utterance: StreamingUtterance, samples: NDArray[np.int16]) -> None:
        """Give the front end an utterance's next audio: i16 ``[n]``."""
        ...

    def recognize(self, utterances: Sequence[StreamingUtterance]) -> StepResult:
        """Recognise every chunk that is complete.

        An utterance that cannot be recognised gets its ``failure`` set. The slots change only when
        the result is kept.
        """
        ...


@dataclass(frozen=True)
class _Piece:
    """An encoded chunk of one row."""

    row: int
    encoded: NDArray[np.float32]
    """f32 ``[D, T]``, all frames real."""


class StreamingRecognizer:
    """:class:`Recognizer` with caches in arrays, for encoders whose caches come and go with every call."""

    def __init__(
        self,
        encoders: Mapping[int, CacheAwareEncoder],
        decoder: RowDecoder,
        mel: LogMel,
        *,
        slots: int,
        audio: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Allocate; encoders are by the feature frames of their chunks, and have the same caches.

        Raises:
            ModelLoadingError: the encoders do not belong together.
        """
        first = next(iter(encoders.values())).initial
        for encoder in encoders.values():
            shapes = {name: value.shape for name, value in encoder.initial.items()}
            if shapes != {name: value.shape for name, value in first.items()}:
                raise ModelLoadingError(
                    "the encoders' caches have different shapes: they are not of one model"
                )
        self._encoders = encoders
        self._caches = tuple(first)
        self._decoder = decoder
        self._clock = clock
        self._front = BatchedLogMel(mel, slots, audio=audio, frames=max(encoders))
        history = np.full((mel.bands, HISTORY), SILENCE, np.float32)
        decoding = {name: values[0] for name, values in decoder.initial(1).items()}
        self._decoding = tuple(decoding)
        self._arrays = SlotArrays(slots, first | decoding | {_HISTORY: history})

    @property
    def free(self) -> int:
        """Utterances that could begin now."""
        return self._arrays.free

    def acquire(self) -> int:
        """Take a slot for a new utterance.

        Raises:
            OverloadedError: all slots are taken.
        """
        slot = self._arrays.acquire()
        self._front.begin(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._arrays.release(slot)

    def write(self, utterance: StreamingUtterance, samples: NDArray[np.int16]) -> None:
        """Give the front end an utterance's next audio: i16 ``[n]``."""
        if utterance.slot is not None:
            self._front.write(utterance.slot, utterance.written, samples)

    def recognize(self, utterances: Sequence[StreamingUtterance]) -> RecognizedStep:
        """See :meth:`Recognizer.recognize`."""
        ready = [utterance for utterance in utterances if is_ready(utterance, self._front)]
        rounds = RecognizedStep(self._arrays, ready)
        while chosen := [row for row, utterance in enumerate(ready) if is_ready(utterance, self._front)]:
            self._round(rounds, np.array(chosen))
        return rounds

    def _round(self, rounds: RecognizedStep, chosen: NDArray[np.int64]) -> None:
        """One chunk of each chosen row: an encoder call for each look-ahead, then one decoder call."""
        began = self._clock()
        pieces: list[_Piece] = []
        for chunk in sorted({rounds.utterances[row].chunk for row in chosen}):
            group = np.array([row for row in chosen if rounds.utterances[row].chunk == chunk])
            pieces += self._try(rounds, group, lambda rows: self._encode(rounds, rows, chunk))  # noqa: B023 - called at once
        between = self._clock()
        encoded = {piece.row: piece for piece in pieces}
        self._try(
            rounds,
            np.array(sorted(encoded), np.int64),
            lambda rows: self._decode(rounds, [encoded[int(row)] for row in rows]),
        )
        rounds.encoder_ms += milliseconds(between - began)
        rounds.decoder_ms += milliseconds(self._clock() - between)

    def _try(
        self,
        rounds: RecognizedStep,
        rows: NDArray[np.int64],
        run: Callable[[NDArray[np.int64]], list[_Piece]],
    ) -> list[_Piece]:
        """Run for all rows at once, then without those that fail; if they are not known, for each alone."""
        try:
            return run(rows) if len(rows) else []
        except RowsNotFiniteError as error:
            failed = np.isin(np.arange(len(rows)), error.rows)
            rounds.fail(rows[failed], error)
            return self._try(rounds, rows[~failed], run)
        except ParleyError as error:
            if len(rows) == 1:
                rounds.fail(rows, error)
                return []
        return [piece for row in rows for piece in self._try(rounds, np.array([row]), run)]

    def _encode(self, rounds: RecognizedStep, group: NDArray[np.int64], chunk: int) -> list[_Piece]:
        """Encode a chunk of some rows of the same look-ahead; what is not finite fails alone."""
        utterances = [rounds.utterances[row] for row in group]
        rows = take(rounds.rows, group, (*self._caches, _HISTORY))
        frames = self._front.frames(
            np.array([utterance.slot for utterance in utterances]),
            np.array([utterance.frame for utterance in utterances]),
            chunk,
            np.array([utterance.written for utterance in utterances]),
            np.array([utterance.ended for utterance in utterances]),
        )
        features = np.concatenate([rows[_HISTORY], frames], axis=2)
        prompts = np.array([utterance.prompt for utterance in utterances], np.int64)
        encoded, lengths, caches = self._encoders[chunk].encode(features, rows, prompts)
        put(rounds.rows, group, caches | {_HISTORY: features[:, :, -HISTORY:]})
        finite = np.isfinite(encoded).all(axis=(1, 2))
        if not finite.all():
            rounds.fail(group[~finite], InferenceError("the streaming encoder's output is not finite"))
        return [
            _Piece(int(row), encoded[index, :, : int(lengths[index])])
            for index, row in enumerate(group)
            if finite[index]
        ]

    def _decode(self, rounds: RecognizedStep, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Decode the pieces, which are in the order of their rows."""
        rows = np.array([piece.row for piece in pieces])
        lengths = np.array([piece.encoded.shape[1] for piece in pieces], np.int64)
        encoded = np.zeros((len(pieces), pieces[0].encoded.shape[0], lengths.max()), np.float32)
        for index, piece in enumerate(pieces):
            encoded[index, :, : lengths[index]] = piece.encoded
        boosting = [rounds.utterances[row].boosting for row in rows]
        readings, state = self._decoder.decode(
            encoded,
            lengths,
            take(rounds.rows, rows, self._decoding),
            # Without phrases there is no look-up.
            boosting if any(len(own.arcs) for own in boosting) else None,
        )
        put(rounds.rows, rows, state)
        for piece, length, reading in zip(pieces, lengths.tolist(), readings, strict=True):
            rounds.utterances[piece.row].advance(reading, length)
        return list(pieces)


def is_ready(utterance: StreamingUtterance, front: BatchedLogMel) -> bool:
    """Whether there is a chunk to recognise: a full one, or what is left at the end.

    After the end comes one chunk of silence, for words are written some time after they are said.
    """
    if utterance.slot is None or utterance.failure is not None:
        return False
    if utterance.ended:
        return utterance.frame < front.total(utterance.written) + utterance.chunk
    return utterance.written >= front.needed(utterance.frame + utterance.chunk)


class RecognizedStep:
    """:class:`StepResult` of :class:`StreamingRecognizer`: copies of the slots' rows."""

    def __init__(self, arrays: SlotArrays, utterances: Sequence[StreamingUtterance]) -> None:
        """Gather the rows of ``utterances``, all of which have slots."""
        self._arrays = arrays
        self.utterances = utterances
        self.slots = np.array([utterance.slot for utterance in utterances], np.int64)
        self.rows: Rows = arrays.gather(self.slots) if utterances else {}
        self.encoder_ms = 0.0
        self.decoder_ms = 0.0
        """Time of all calls (milliseconds), the front end's included in the encoder's."""

    def fail(self, rows: NDArray[np.int64], error: ParleyError) -> None:
        """These utterances are not recognised any further."""
        for row in rows:
            self.utterances[row].failure = error

    def keep(self, slots: Sequence[int]) -> None:
        """Scatter the rows of these slots, as far as they were part of it."""
        wanted = set(slots)
        rows = np.array([row for row, slot in enumerate(self.slots.tolist()) if slot in wanted], np.int64)
        if len(rows):
            self._arrays.scatter(self.slots[rows], take(self.rows, rows, tuple(self.rows)))

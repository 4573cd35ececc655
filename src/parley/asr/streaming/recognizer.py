"""Recognising the chunks of many utterances together, with their state in slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.batch import RowDecoder
from parley.asr.features.batched import BatchedLogMel
from parley.asr.features.log_mel import SILENCE, LogMel
from parley.asr.pipeline.step import milliseconds
from parley.asr.streaming.encoder import CACHES, HISTORY, StreamingEncoder
from parley.asr.streaming.utterance import StreamingUtterance
from parley.errors import InferenceError, ModelLoadingError, OverloadedError, ParleyError

_HISTORY = "history"


@dataclass(frozen=True)
class _Piece:
    """An encoded chunk of one row."""

    row: int
    encoded: NDArray[np.float32]
    """f32 ``[D, T]``, all frames real."""


class StreamingRecognizer:
    """Owns the slots: what encoder, decoder and front end remember of every utterance."""

    def __init__(
        self,
        encoders: Mapping[int, StreamingEncoder],
        decoder: RowDecoder,
        mel: LogMel,
        *,
        slots: int,
        audio: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Allocate.

        Args:
            encoders: by the feature frames of their chunks; all with the same caches.
            decoder: common to all of them.
            mel: the front end.
            slots: utterances at once.
            audio: samples that may come for an utterance in one step.
            clock: seconds, for timings.

        Raises:
            ModelLoadingError: the encoders do not belong together.
        """
        first = next(iter(encoders.values())).initial
        for encoder in encoders.values():
            if any(encoder.initial[name].shape != first[name].shape for name in CACHES):
                raise ModelLoadingError(
                    "the encoders' caches have different shapes: they are not of one model"
                )
        self._encoders = encoders
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
        """Recognise every chunk that is complete.

        An utterance that cannot be recognised gets its ``failure`` set. The slots change only when
        the result is kept.
        """
        ready = [utterance for utterance in utterances if self._ready(utterance)]
        rounds = RecognizedStep(self._arrays, ready)
        while chosen := [row for row, utterance in enumerate(ready) if self._ready(utterance)]:
            self._round(rounds, np.array(chosen))
        return rounds

    def _ready(self, utterance: StreamingUtterance) -> bool:
        """Whether there is a chunk to recognise: a full one, or what is left at the end.

        After the end comes one chunk of silence, for words are written some time after they are said.
        """
        if utterance.slot is None or utterance.failure is not None:
            return False
        if utterance.ended:
            return utterance.frame < self._front.total(utterance.written) + utterance.chunk
        return utterance.written >= self._front.needed(utterance.frame + utterance.chunk)

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
        """Run for all rows at once; if that fails, for each alone, so that only those fail that must."""
        try:
            return run(rows) if len(rows) else []
        except ParleyError as error:
            if len(rows) == 1:
                rounds.fail(rows, error)
                return []
        return [piece for row in rows for piece in self._try(rounds, np.array([row]), run)]

    def _encode(self, rounds: RecognizedStep, group: NDArray[np.int64], chunk: int) -> list[_Piece]:
        """Encode a chunk of some rows of the same look-ahead; what is not finite fails alone."""
        utterances = [rounds.utterances[row] for row in group]
        rows = take(rounds.rows, group, (*CACHES, _HISTORY))
        frames = self._front.frames(
            np.array([utterance.slot for utterance in utterances]),
            np.array([utterance.frame for utterance in utterances]),
            chunk,
            np.array([utterance.written for utterance in utterances]),
            np.array([utterance.ended for utterance in utterances]),
        )
        features = np.concatenate([rows[_HISTORY], frames], axis=2)
        encoded, lengths, caches = self._encoders[chunk].encode(features, rows)
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
            # Where nobody expects a phrase, nothing is looked up.
            boosting if any(len(own.arcs) for own in boosting) else None,
        )
        put(rounds.rows, rows, state)
        for piece, length, reading in zip(pieces, lengths.tolist(), readings, strict=True):
            rounds.utterances[piece.row].advance(reading, length)
        return list(pieces)


class RecognizedStep:
    """What became of the utterances of a step; :meth:`keep` makes it last."""

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


Rows: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, all of the same length: one row for each of some streams."""


class SlotArrays:
    """One row of every array for each slot; a slot belongs to whoever acquired it.

    A step gathers the rows of its streams, works on these copies, and scatters what has come of
    them when it is sure: whatever fails before leaves no trace here, and the rows of streams that
    are not in the step are never read or written.
    """

    def __init__(self, slots: int, initial: Mapping[str, NDArray[Any]]) -> None:
        """Allocate.

        Args:
            slots: rows of every array.
            initial: by name, what a row holds when its slot is acquired.
        """
        self._initial = {name: value.copy() for name, value in initial.items()}
        # Memory that nobody has touched is not taken from the system: idle slots cost nothing.
        self._arrays = {
            name: np.zeros((slots, *value.shape), value.dtype) for name, value in self._initial.items()
        }
        self._free = list(range(slots - 1, -1, -1))
        self._slots = slots

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def acquire(self) -> int:
        """Take a slot, with the initial values in its row.

        Raises:
            OverloadedError: all slots are taken.
        """
        if not self._free:
            raise OverloadedError(f"all {self._slots} utterances that can be heard at once are being spoken")
        slot = self._free.pop()
        for name, value in self._initial.items():
            self._arrays[name][slot] = value
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back that was acquired and not yet given back."""
        assert slot not in self._free, f"slot {slot} was given back twice"
        self._free.append(slot)

    def gather(self, slots: NDArray[np.int64]) -> Rows:
        """Copies of some rows, in the order of ``slots``: i64 ``[B]``."""
        return {name: array[slots] for name, array in self._arrays.items()}

    def scatter(self, slots: NDArray[np.int64], rows: Rows) -> None:
        """Write rows back: ``rows[name][i]`` to slot ``slots[i]``."""
        for name, array in self._arrays.items():
            array[slots] = rows[name]


def take(rows: Rows, chosen: NDArray[np.int64], names: Sequence[str]) -> Rows:
    """Some of the rows of some arrays; all rows, in order, are not copied."""
    return {name: rows[name] if len(chosen) == len(rows[name]) else rows[name][chosen] for name in names}


def put(rows: Rows, chosen: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
    """Replace some rows by new ones; all of them, in order, are not copied."""
    for name, value in values.items():
        if len(chosen) == len(rows[name]):
            rows[name] = value
        else:
            rows[name][chosen] = value

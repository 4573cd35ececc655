"""Many recordings to transcripts, in rounds of bounded size.

A round takes the next windows of all recordings in turn until its room is full, and makes one
encoder call for all of them. So a short recording does not wait for a long one to end, a long one
alone has all the room, and neither memory nor the time for which a round keeps the networks from
others grows with the length of a recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.files.recording import EncoderWindow, Recording, Stretch, search_together
from parley.asr.offline.networks import DecodedPiece, RowState
from parley.asr.pipeline.segmentation import Detector
from parley.errors import ParleyError


class TranscriptionModels(Detector, Protocol):
    """The three networks. Each failure is raised as a :class:`parley.errors.ParleyError`.

    Apart because ``perf`` runs them in its own process, the server by requests to models.
    """

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`parley.asr.offline.networks.OnnxEncoder.encode`."""
        ...

    def decode_pieces(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        states: Sequence[RowState] | None,
        *,
        final: Sequence[bool],
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> tuple[list[DecodedPiece], list[RowState]]:
        """Decode the next piece of each row.

        Args:
            encoded: f32 ``[B, D, T']``.
            lengths: i64 ``[B]``, real frames of each row.
            states: what each row's previous piece left; None: these are the first.
            final: whether each row ends with its piece; one that goes on may keep tokens back.
            boosting: each row's phrases; None: no row has any.

        Returns:
            What was decoded of each row, and its state for the next piece.
        """
        ...


@dataclass(frozen=True)
class _Run:
    """A window that is encoded in this round."""

    recording: Recording
    stretch: Stretch
    window: EncoderWindow


@dataclass(frozen=True)
class _Piece:
    """What a stretch gives to the decoder in this round."""

    recording: Recording
    stretch: Stretch
    encoded: NDArray[np.float32]
    """f32 ``[D, T']``: the kept frames of its windows, in order."""


class TranscriptionRounds:
    """Makes the model calls."""

    def __init__(
        self,
        models: TranscriptionModels,
        *,
        room: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Use the networks.

        Args:
            models: the networks.
            room: feature frames of one encoder call, padding included. One window always has room.
            clock: seconds, for the replies' timings.
        """
        self._models = models
        self._room = room
        self._clock = clock

    def run(self, recordings: Sequence[Recording]) -> None:
        """Bring the recordings a round further.

        A call that fails is set as :attr:`Recording.error` of its recordings;
        they must not come again.

        Args:
            recordings: none of them done; served in their order.
        """
        search_together(recordings, self._models)
        self._recognize([recording for recording in recordings if recording.error is None])

    def _recognize(self, recordings: Sequence[Recording]) -> None:
        runs = self._choose(recordings)
        if not runs:
            return
        taking_part = list({id(run.recording): run.recording for run in runs}.values())
        began = self._clock()
        try:
            pieces = self._encode(runs)
            between = self._clock()
            new = [piece for piece in pieces if piece.stretch.state is None]
            going_on = [piece for piece in pieces if piece.stretch.state is not None]
            self._decode(new)
            self._decode(going_on)
        except ParleyError as error:
            _fail(taking_part, error)
            return
        ended = self._clock()
        for recording in taking_part:
            recording.encoder_ms += 1000 * (between - began)
            recording.decoder_ms += 1000 * (ended - between)

    def _choose(self, recordings: Sequence[Recording]) -> list[_Run]:
        """The next windows of the recordings in turn, as many as have room side by side."""
        runs: list[_Run] = []
        longest = 0
        waiting = list(recordings)
        while waiting:
            still_waiting = []
            for recording in waiting:
                found = recording.next_window()
                if found is None:
                    continue
                frames = max(longest, found[1].end - found[1].start)
                if runs and frames * (len(runs) + 1) > self._room:
                    return runs
                longest = frames
                found[0].windows.popleft()
                runs.append(_Run(recording, *found))
                still_waiting.append(recording)
            waiting = still_waiting
        return runs

    def _encode(self, runs: Sequence[_Run]) -> list[_Piece]:
        frames = [run.stretch.features(run.window) for run in runs]
        lengths = np.array([own.shape[1] for own in frames], np.int64)
        features = np.zeros((len(runs), frames[0].shape[0], lengths.max()), np.float32)
        for row, own in enumerate(frames):
            features[row, :, : own.shape[1]] = own
        encoded, encoded_lengths = self._models.encode(features, lengths)
        kept: dict[int, list[NDArray[np.float32]]] = {}
        for run, outputs, length in zip(runs, encoded, encoded_lengths.tolist(), strict=True):
            first, count = run.window.first, run.window.kept
            last = length if count is None else first + count
            kept.setdefault(id(run.stretch), []).append(outputs[:, first:last])
        owners = {id(run.stretch): run for run in runs}
        return [
            _Piece(owners[key].recording, owners[key].stretch, np.concatenate(parts, axis=1))
            for key, parts in kept.items()
        ]

    def _decode(self, pieces: Sequence[_Piece]) -> None:
        if not pieces:
            return
        lengths = np.array([piece.encoded.shape[1] for piece in pieces], np.int64)
        encoded = np.zeros((len(pieces), pieces[0].encoded.shape[0], lengths.max()), np.float32)
        for row, piece in enumerate(pieces):
            encoded[row, :, : lengths[row]] = piece.encoded
        states = [piece.stretch.state for piece in pieces if piece.stretch.state is not None]
        final = [not piece.stretch.windows for piece in pieces]
        boosting = [piece.recording.boosting for piece in pieces]
        decoded, after = self._models.decode_pieces(
            encoded, lengths, states or None, final=final, boosting=boosting
        )
        for piece, own, state in zip(pieces, decoded, after, strict=True):
            piece.stretch.decoded(own, piece.encoded.shape[1], state)


def _fail(recordings: Iterable[Recording], error: ParleyError) -> None:
    for recording in recordings:
        recording.error = error

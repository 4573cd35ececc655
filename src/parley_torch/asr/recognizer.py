"""Recognising the chunks of many utterances together, with their state on a torch device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.batch import RowDecoder, Rows
from parley.asr.decoding.hypotheses import Reading
from parley.asr.features import BatchedLogMel, LogMel
from parley.asr.service import milliseconds
from parley.asr.streaming.recognizer import is_ready
from parley.asr.streaming.utterance import StreamingUtterance
from parley.errors import OverloadedError, ParleyError
from parley.runtime.batching import RowsNotFiniteError
from parley_torch.asr.streaming import StreamChunks, StreamingDevice


class DeviceRecognizer:
    """:class:`parley.asr.streaming.recognizer.Recognizer` on a :class:`StreamingDevice`.

    A slot has two rows of the pool. A step reads the one with what was kept last and writes the other;
    keeping the step makes that one the row of the slot. So what fails leaves no trace, and nothing is
    copied for it.

    Args:
        device: with two rows for each slot.
        mel: the front end's constants.
        slots: utterances at once.
        audio: samples that may come for an utterance in one step.
        longest: feature frames of the longest chunk.
        decoder: of utterances with expected phrases, and of all if the device does not decode.
        decodes: whether the device decodes.
        clock: seconds, for timings.
    """

    def __init__(
        self,
        device: StreamingDevice,
        mel: LogMel,
        *,
        slots: int,
        audio: int,
        longest: int,
        decoder: RowDecoder,
        decodes: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device = device
        self._decoder = decoder
        self._decodes = decodes
        self._clock = clock
        self._front = BatchedLogMel(mel, slots, audio=audio, frames=longest)
        self._free = list(range(slots - 1, -1, -1))
        self._slots = slots
        self._rows = np.full(slots, device.initial_row)
        """Of each slot, the row with what was kept last."""
        self._states: dict[int, Rows] = {}
        """By slot, where decoding on the host stands."""

    @property
    def free(self) -> int:
        """Utterances that could begin now."""
        return len(self._free)

    def acquire(self) -> int:
        """Take a slot for a new utterance.

        Raises:
            OverloadedError: all slots are taken.
        """
        if not self._free:
            raise OverloadedError(f"all {self._slots} slots for utterances are in use")
        slot = self._free.pop()
        self._rows[slot] = self._device.initial_row
        self._front.begin(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back that was acquired and not yet given back."""
        assert slot not in self._free, f"slot {slot} was given back twice"
        self._states.pop(slot, None)
        self._free.append(slot)

    def write(self, utterance: StreamingUtterance, samples: NDArray[np.int16]) -> None:
        """Give the front end an utterance's next audio: i16 ``[n]``."""
        if utterance.slot is not None:
            self._front.write(utterance.slot, utterance.written, samples)

    def recognize(self, utterances: Sequence[StreamingUtterance]) -> DeviceStep:
        """Recognise every chunk that is complete; see :class:`parley.asr.streaming.recognizer.Recognizer`."""
        step = DeviceStep(
            [utterance for utterance in utterances if is_ready(utterance, self._front)],
            self._rows,
            self._states,
        )
        while ready := [utterance for utterance in step.utterances if is_ready(utterance, self._front)]:
            for chunk in sorted({utterance.chunk for utterance in ready}):
                self._recognize(step, [utterance for utterance in ready if utterance.chunk == chunk], chunk)
        return step

    def _recognize(self, step: DeviceStep, utterances: Sequence[StreamingUtterance], chunk: int) -> None:
        """One chunk of each of some utterances."""
        began = self._clock()
        slots = [_slot(utterance) for utterance in utterances]
        audio, real_samples, real_frames = self._front.stretch(
            np.array(slots),
            np.array([utterance.frame for utterance in utterances]),
            chunk,
            np.array([utterance.written for utterance in utterances]),
            np.array([utterance.ended for utterance in utterances]),
        )
        sources = np.array([step.rows.get(slot, int(self._rows[slot])) for slot in slots])
        # The other row of the slot; after the first chunk of a step the same again.
        targets = np.array(
            [step.rows.setdefault(slot, _other(slot, int(self._rows[slot]))) for slot in slots]
        )
        prompts = np.array([utterance.prompt for utterance in utterances])
        on_host = [not self._decodes or bool(len(utterance.boosting.arcs)) for utterance in utterances]
        outputs = self._device.run(
            chunk,
            StreamChunks(audio, real_samples, real_frames, sources, targets, prompts),
            encoded=any(on_host),
        )
        between = self._clock()
        step.encoder_ms += milliseconds(between - began)
        waiting: list[tuple[StreamingUtterance, NDArray[np.float32]]] = []
        for utterance, output, here in zip(utterances, outputs, on_host, strict=True):
            if isinstance(output, ParleyError):
                utterance.failure = output
            elif here:
                waiting.append((utterance, output.encoded))
            else:
                utterance.advance(Reading(output.tokens, []), self._device.frames(chunk))
        if waiting:
            self._decode(step, waiting)
            step.decoder_ms += milliseconds(self._clock() - between)

    def _decode(
        self, step: DeviceStep, waiting: Sequence[tuple[StreamingUtterance, NDArray[np.float32]]]
    ) -> None:
        """Decode on the host: all at once, then without those that failed, or else each alone."""
        try:
            self._decode_together(step, waiting)
        except RowsNotFiniteError as error:
            for row in error.rows:
                waiting[row][0].failure = error
            if rest := [one for row, one in enumerate(waiting) if row not in error.rows]:
                self._decode(step, rest)
        except ParleyError as error:
            if len(waiting) == 1:
                waiting[0][0].failure = error
                return
            for one in waiting:
                self._decode(step, [one])

    def _decode_together(
        self, step: DeviceStep, waiting: Sequence[tuple[StreamingUtterance, NDArray[np.float32]]]
    ) -> None:
        slots = [_slot(utterance) for utterance, _ in waiting]
        encoded = np.stack([frames for _, frames in waiting])
        states = [
            step.states.get(slot) or self._states.get(slot) or self._decoder.initial(1) for slot in slots
        ]
        boosting = [utterance.boosting for utterance, _ in waiting]
        readings, after = self._decoder.decode(
            encoded,
            np.full(len(waiting), encoded.shape[2], np.int64),
            {name: np.concatenate([state[name] for state in states]) for name in states[0]},
            boosting if any(len(own.arcs) for own in boosting) else None,
        )
        for row, (slot, (utterance, _), reading) in enumerate(zip(slots, waiting, readings, strict=True)):
            step.states[slot] = {name: values[row : row + 1] for name, values in after.items()}
            utterance.advance(reading, encoded.shape[2])


class DeviceStep:
    """:class:`parley.asr.streaming.recognizer.StepResult`: the rows that a step has written."""

    def __init__(
        self,
        utterances: Sequence[StreamingUtterance],
        kept_rows: NDArray[np.int64],
        kept_states: dict[int, Rows],
    ) -> None:
        self.utterances = utterances
        self._kept_rows = kept_rows
        self._kept_states = kept_states
        self.rows: dict[int, int] = {}
        """By slot."""
        self.states: dict[int, Rows] = {}
        self.encoder_ms = 0.0
        """With the decoding on the device."""
        self.decoder_ms = 0.0

    def keep(self, slots: Sequence[int]) -> None:
        """Make what was written the state of these slots, as far as they were part of it."""
        for slot in slots:
            if slot in self.rows:
                self._kept_rows[slot] = self.rows[slot]
            if slot in self.states:
                self._kept_states[slot] = self.states[slot]


def _slot(utterance: StreamingUtterance) -> int:
    assert utterance.slot is not None
    return utterance.slot


def _other(slot: int, row: int) -> int:
    """The row of a slot that is not ``row``."""
    return 2 * slot + (row == 2 * slot)

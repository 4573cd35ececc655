"""One step of many utterances: one run of the flow, few of the vocoder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.errors import InferenceError, ParleyError
from parley.runtime.process_end import DeviceErrors
from parley.tts.s3gen.batch import AudioVoice, FlowRow, Padding, pack
from parley.tts.s3gen.buckets import Buckets
from parley.tts.s3gen.checkpoint import Networks
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN
from parley.tts.s3gen.past import Past, PastBatch
from parley.tts.s3gen.prompts import DEFAULT_VOICES, PromptPasts
from parley.tts.s3gen.utterance import AudioUtterance, prompt_row
from parley.tts.s3gen.vocoding import VocoderJob, vocode
from parley.tts.s3gen.workspace import Workspace

_log = logging.getLogger(__name__)
_PROMPTS = 8  # that are made in one run of the flow


@dataclass(frozen=True)
class Job:
    """Make the frames of an utterance up to a token, and the audio that is certain then."""

    utterance: AudioUtterance
    end: int


@dataclass(frozen=True)
class _Piece:
    """What the flow made of a job."""

    mel: Tensor
    kept: Past | None


class AudioSynthesizer:
    """Runs the networks. Not to be used from two threads at once.

    Args:
        networks: on ``device`` already.
        device: where they are.
        steps: of the flow; 0 for what the checkpoint is made for (2 if distilled, else 10).
        buckets: sizes to which the flow's batches are padded.
        voices: whose prompts' pasts are kept.
        threads: of each operation on a CPU; 0 leaves it to the library. See :meth:`begin`.
    """

    def __init__(
        self,
        networks: Networks,
        device: torch.device,
        *,
        steps: int = 0,
        buckets: Buckets = Buckets(),  # noqa: B008 - cannot be changed
        voices: int = DEFAULT_VOICES,
        threads: int = 0,
    ) -> None:
        self._networks = networks
        self.device = device
        """Where the networks are."""
        self.empty = networks.flow.empty_past(steps or (2 if networks.flow.meanflow else 10))
        """A past of no tokens."""
        self._buckets = buckets
        self._workspace = Workspace()
        self._prompts = PromptPasts(self._prompt_pasts, voices)
        self._threads = threads
        self._errors = DeviceErrors("s3gen")

    def begin(self) -> None:
        """To be called first by the thread that will run the networks.

        Each thread that has run an operation on several cores keeps helpers of its own for them. If
        those of two threads are more than the cores, all helpers sleep between operations instead of
        spinning, and short operations take several times as long. So no other thread may have any.
        """
        if self._threads:
            torch.set_num_threads(self._threads)

    @property
    def vocabulary(self) -> int:
        """Tokens are smaller than this."""
        return self._networks.flow.vocabulary

    @torch.inference_mode()
    def prepare(self, utterances: Sequence[AudioUtterance]) -> None:
        """Make what can be made of utterances before their first tokens have come.

        Raises:
            Exception: the networks failed; the utterances can still be tried.
        """
        self._prompts.get([utterance.voice for utterance in utterances if utterance.keeps_past])

    @torch.inference_mode()
    def step(self, jobs: Sequence[Job]) -> list[NDArray[np.int16] | ParleyError]:
        """Serve all jobs, at most one of each utterance.

        Returns:
            For each its new PCM, which may be empty, or why there is none; the utterance is then
            of no more use.
        """
        pieces = self._pieces(jobs)
        made = [(job, piece) for job, piece in zip(jobs, pieces, strict=True) if isinstance(piece, _Piece)]
        try:
            audio = self._audio(made) if made else []
        except Exception as error:  # noqa: BLE001 - logged and returned
            _log.exception("the vocoder failed for %d utterances", len(made))
            audio = [_failed(error)] * len(made)
        results = iter(audio)
        return [next(results) if isinstance(piece, _Piece) else piece for piece in pieces]

    def flow(self, rows: Sequence[FlowRow], *, keep: bool = False) -> tuple[list[Tensor], PastBatch]:
        """Run the flow.

        Args:
            rows: one for each utterance.
            keep: whether pasts are wanted; without it, no row may have one.

        Returns:
            The spectrograms of the rows without their prompts, each ``[80, n]``; and what is kept,
            valid until the next call.
        """
        unused = self._buckets.round_rows(len(rows)) - len(rows)
        padding = Padding(self._buckets.round_frames, self._buckets.round_past)
        with torch.inference_mode():
            batch = pack(
                [*rows, *[rows[0]] * unused], self.empty, self._workspace, padding=padding, keep=keep
            )
            mels = self._networks.flow(batch, keep=keep)
        return [
            mel[:, FRAMES_PER_TOKEN * row.prompt : row.frames] for row, mel in zip(rows, mels, strict=False)
        ], batch.past

    def _pieces(self, jobs: Sequence[Job]) -> list[_Piece | ParleyError]:
        """Run the flow; the utterances stay as they were."""
        try:
            return list(self._run_flow(jobs)) if jobs else []
        except Exception as error:  # noqa: BLE001 - logged and returned
            self._errors.failed(error)
            if len(jobs) == 1:
                _log.exception("a step of the synthesis failed")
                return [_failed(error)]
        # Not all need to suffer from what one of them, or the size of the batch, caused.
        _log.exception("a step of %d utterances failed; trying each alone", len(jobs))
        return [self._pieces([job])[0] for job in jobs]

    def _run_flow(self, jobs: Sequence[Job]) -> list[_Piece | ParleyError]:
        keeping = [job.utterance for job in jobs if job.utterance.keeps_past]
        prompts = iter(self._prompts.get([utterance.voice for utterance in keeping]))
        rows = [
            job.utterance.row(job.end, next(prompts) if job.utterance.keeps_past else None) for job in jobs
        ]
        mels, kept = self.flow(rows, keep=bool(keeping))
        finite = _are_finite(mels)
        self._errors.worked()
        return [
            _Piece(mel, kept.row(index, row.length) if job.utterance.keeps_past else None)
            if finite[index]
            else _not_finite("spectrogram")
            for index, (job, row, mel) in enumerate(zip(jobs, rows, mels, strict=True))
        ]

    def _audio(self, made: Sequence[tuple[Job, _Piece]]) -> list[NDArray[np.int16] | ParleyError]:
        lasts = [job.utterance.is_last(job.end) for job, _ in made]
        audio = vocode(
            self._networks.vocoder,
            [
                VocoderJob(job.utterance.vocoder, job.utterance.frames(piece.mel, job.end, piece.kept), last)
                for (job, piece), last in zip(made, lasts, strict=True)
            ],
        )
        finite = _are_finite(audio)
        return [
            job.utterance.output.push(samples.cpu().numpy(), last=last) if own else _not_finite("waveform")
            for (job, _), samples, last, own in zip(made, audio, lasts, finite, strict=True)
        ]

    def _prompt_pasts(self, voices: Sequence[AudioVoice]) -> list[Past]:
        pasts: list[Past] = []
        for first in range(0, len(voices), _PROMPTS):
            rows = [prompt_row(voice) for voice in voices[first : first + _PROMPTS]]
            kept = self.flow(rows, keep=True)[1]
            pasts += [kept.row(index, row.length) for index, row in enumerate(rows)]
        # All utterances of a voice are made on its past, as long as it is kept.
        if not all(_are_finite([tensor for past in pasts for tensor in past.tensors])):
            raise _not_finite("past of a prompt")
        return pasts


def _are_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Of each tensor, whether it holds numbers alone; one wait for the device."""
    if not tensors:
        return []
    found: list[bool] = torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).tolist()
    return found


def _not_finite(what: str) -> InferenceError:
    error = InferenceError(f"synthesis failed: the {what} holds values that are not numbers")
    _log.error("%s", error)
    return error


def _failed(error: Exception) -> InferenceError:
    return InferenceError(f"synthesis failed: {type(error).__name__}: {error}")

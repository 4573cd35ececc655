"""One step of many utterances: one run of the flow, few of the vocoder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from parley.errors import InferenceError, ParleyError
from parley.tts.s3gen.buckets import Buckets
from parley.tts.s3gen.checkpoint import Networks
from parley.tts.s3gen.flow import FlowRow, pack
from parley.tts.s3gen.utterance import Utterance
from parley.tts.s3gen.vocoding import VocoderJob, vocode

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """Make the frames of an utterance up to a token, and the audio that is certain then."""

    utterance: Utterance
    end: int


class Synthesizer:
    """Runs the networks. Not to be used from two threads at once.

    Args:
        networks: on ``device`` already.
        device: where they are.
        steps: of the flow; 0 for what the checkpoint is made for (2 if distilled, else 10).
        buckets: sizes to which the flow's batches are padded.
    """

    def __init__(
        self,
        networks: Networks,
        device: torch.device,
        *,
        steps: int = 0,
        buckets: Buckets = Buckets(),  # noqa: B008 - cannot be changed
    ) -> None:
        self._networks = networks
        self._device = device
        self._steps = steps or (2 if networks.flow.meanflow else 10)
        self._buckets = buckets

    @property
    def vocabulary(self) -> int:
        """Tokens are smaller than this."""
        return self._networks.flow.vocabulary

    def step(self, jobs: Sequence[Job]) -> list[NDArray[np.int16] | ParleyError]:
        """Serve all jobs, at most one of each utterance.

        Returns:
            For each its new PCM, which may be empty, or why there is none; the utterance is then
            of no more use.
        """
        try:
            return list(self._step(jobs))
        except Exception as error:  # noqa: BLE001 - logged and returned
            if len(jobs) == 1:
                _log.exception("a step of the synthesis failed")
                return [InferenceError(f"synthesis failed: {type(error).__name__}: {error}")]
        # Not all need to suffer from what one of them, or the size of the batch, caused.
        _log.exception("a step of %d utterances failed; trying each alone", len(jobs))
        return [self.step([job])[0] for job in jobs]

    @torch.inference_mode()
    def _step(self, jobs: Sequence[Job]) -> list[NDArray[np.int16]]:
        mels = self.flow([job.utterance.row(job.end) for job in jobs])
        lasts = [job.utterance.is_last(job.end) for job in jobs]
        audio = vocode(
            self._networks.vocoder,
            [
                VocoderJob(job.utterance.vocoder, job.utterance.frames(mel, job.end), last)
                for job, mel, last in zip(jobs, mels, lasts, strict=True)
            ],
        )
        return [
            job.utterance.output.push(samples.cpu().numpy(), last=last)
            for job, samples, last in zip(jobs, audio, lasts, strict=True)
        ]

    @torch.inference_mode()
    def flow(self, rows: list[FlowRow]) -> list[torch.Tensor]:
        """The spectrograms of the rows without their prompts, each ``[80, n]``."""
        unused = self._buckets.round_rows(len(rows)) - len(rows)
        batch = pack([*rows, *rows[:1] * unused], self._device, self._buckets.round_frames)
        mels = self._networks.flow(batch, self._steps)
        return [mel[:, row.prompt_frames : row.frames] for row, mel in zip(rows, mels, strict=False)]

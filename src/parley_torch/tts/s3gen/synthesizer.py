"""One step of many utterances: one run of the flow, few of the vocoder.

Because padding changes nothing, every batch can be padded to one of a few sizes. On a GPU each of them has
a graph, which is captured when the model is loaded: the flow's by :mod:`parley_torch.tts.s3gen.graphs`, the
vocoder's by :mod:`parley_torch.tts.s3gen.window_graphs`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.errors import InferenceError, ParleyError
from parley.runtime.batching import round_up
from parley.runtime.process_end import DeviceErrors
from parley_torch.runtime.cuda_graphs import Capture
from parley_torch.tts.s3gen.checkpoint import Networks
from parley_torch.tts.s3gen.flow import SPEAKER_SIZE, AudioVoice, Buckets, FlowRow, batch_rows
from parley_torch.tts.s3gen.graphs import FlowGraphs
from parley_torch.tts.s3gen.networks import MEL_BANDS
from parley_torch.tts.s3gen.scheduling import S3GenLimits
from parley_torch.tts.s3gen.state import FRAMES_PER_TOKEN, Past, PastBatch, Workspace
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan, prompt_row
from parley_torch.tts.s3gen.vocoder_state import VocoderJob, capture_vocoder, vocode
from parley_torch.tts.s3gen.window_graphs import VocoderGraphs

_log = logging.getLogger("parley.torch")
DEFAULT_VOICES = 16
_PROMPTS = 8  # in one run of the flow


class PromptPasts:
    """The pasts of the prompts of the most recently used voices, shared by a voice's utterances.

    An utterance holds its voice's past for as long as it lasts, also after it is dropped here.

    ``compute`` gets voices with at least one token.
    """

    def __init__(
        self, compute: Callable[[Sequence[AudioVoice]], list[Past]], max_voices: int = DEFAULT_VOICES
    ) -> None:
        self._compute = compute
        self._max_voices = max_voices
        self._known: OrderedDict[bytes, Past] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, voice: AudioVoice) -> bool:
        return not len(voice.tokens) or voice.digest in self._known

    def get(self, voices: Sequence[AudioVoice]) -> list[Past | None]:
        """The past of each voice's prompt; None for a voice without a prompt."""
        missing = {voice.digest: voice for voice in voices if voice not in self}
        new = dict(zip(missing, self._compute(list(missing.values())), strict=True)) if missing else {}
        known = {**self._known, **{digest: replace(past, prompt=True) for digest, past in new.items()}}
        found = [known[voice.digest] if len(voice.tokens) else None for voice in voices]
        for voice, past in zip(voices, found, strict=True):
            if past is not None:
                self._known[voice.digest] = past
                self._known.move_to_end(voice.digest)
        while len(self._known) > self._max_voices:
            self._known.popitem(last=False)
        return found


@dataclass(frozen=True)
class Job:
    """Make the frames of an utterance up to a token, and the audio that is certain then."""

    utterance: AudioUtterance
    end: int


@dataclass(frozen=True)
class _Piece:
    """The flow's result for a job."""

    mel: Tensor
    past: Past | None


class AudioSynthesizer:
    """Runs the networks. Not to be used from two threads at once.

    Args:
        networks: on ``device`` already.
        device: where they are.
        steps: of the flow; 0 for the checkpoint's own number (2 if distilled, else 10).
        buckets: sizes to which the flow's batches are padded.
        voices: number of voices whose prompts' pasts are held.
        threads: of each operation on a CPU; 0 leaves it to the library. See :meth:`begin`.
    """

    def __init__(
        self,
        networks: Networks,
        device: torch.device,
        *,
        steps: int = 0,
        buckets: Buckets = Buckets(),  # noqa: B008 - immutable
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
        self._max_frames = S3GenLimits.max_frames
        self._prompts = PromptPasts(self._compute_prompt_pasts, voices)
        self._threads = threads
        self._errors = DeviceErrors("s3gen")
        self.graphs: FlowGraphs | None = None
        """The flow's, of :meth:`warm_up`."""
        self.vocoder_graphs: VocoderGraphs | None = None
        """The vocoder's, of :meth:`warm_up`."""

    def begin(self) -> None:
        """To be called first by the thread that will run the networks.

        Each thread that has run an operation on several cores keeps helper threads of its own for them.
        If those of two threads are more than the cores, all helpers sleep between operations instead of
        spinning, and short operations take several times as long. So no other thread may have any.
        """
        if self._threads:
            torch.set_num_threads(self._threads)

    @torch.inference_mode()
    def warm_up(self, plan: Plan, *, max_frames: int, capture: Capture | None = None) -> None:
        """Run the flow once for each size of the buckets, and capture its graphs and those of the vocoder.

        To be called by the thread that will serve.

        Args:
            plan: of the utterances.
            max_frames: rows times frames of a batch, without its padding; sizes that only larger ones would
                need are left out.
            capture: makes a graph for each size of the flow and of the vocoder.
        """
        began = time.perf_counter()
        keep = plan.keeps_past
        sizes = self._buckets.sizes(max_frames)
        self.graphs = FlowGraphs(self._networks.flow, capture) if capture is not None else None
        for frames, (tokens, past), rows in sizes:
            row = blank_row(frames, self.empty.blank(tokens).cut(past) if tokens else None)
            if self.graphs is not None:
                batch = batch_rows([row] * rows, self.empty, self._workspace, self._buckets, keep=keep)
                self.graphs.add(batch, keep=keep)
            self.flow([row] * rows, keep=keep)
        self._workspace.fix()
        self._max_frames = max_frames
        _log.info("ran %d sizes of the flow in %.1f s", len(sizes), time.perf_counter() - began)
        if capture is not None:
            began = time.perf_counter()
            of_windows = plan.vocoder_sizes(self._buckets.rows)
            self.vocoder_graphs = capture_vocoder(self._networks.vocoder, of_windows, capture)
            taken = time.perf_counter() - began
            _log.info("captured %d sizes of the vocoder in %.1f s", len(self.vocoder_graphs), taken)

    def padded_frames(self, frames: int) -> int:
        """Length of a row of ``frames`` frames in the flow."""
        return round_up(frames, self._buckets.frames)

    @property
    def vocabulary(self) -> int:
        """Tokens are smaller than this."""
        return self._networks.flow.vocabulary

    @torch.inference_mode()
    def prepare(self, utterances: Sequence[AudioUtterance]) -> None:
        """Compute the prompts' pasts of utterances before their first tokens arrive.

        Raises:
            Exception: the networks failed; the utterances can still be tried.
        """
        self._prompts.get([utterance.voice for utterance in utterances if utterance.keeps_past])

    @torch.inference_mode()
    def step(self, jobs: Sequence[Job]) -> list[NDArray[np.int16] | ParleyError]:
        """Serve all jobs, at most one for each utterance.

        Returns:
            For each its new PCM, which may be empty, or an error, after which the utterance is unusable.
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
            keep: whether new pasts are made; without it, no row may have one.

        Returns:
            The spectrograms of the rows without their prompts, each ``[80, n]``; and the pasts,
            valid until the next call.
        """
        with torch.inference_mode():
            batch = batch_rows(rows, self.empty, self._workspace, self._buckets, keep=keep)
            if self.graphs is None:
                mels, past = self._networks.flow(batch, keep=keep), batch.past
            else:
                mels, past = self.graphs.run(batch, keep=keep)
        return [
            mel[:, FRAMES_PER_TOKEN * row.prompt : row.frames] for row, mel in zip(rows, mels, strict=False)
        ], past

    def _pieces(self, jobs: Sequence[Job]) -> list[_Piece | ParleyError]:
        """Run the flow; the utterances stay as they were."""
        try:
            return list(self._run_flow(jobs)) if jobs else []
        except Exception as error:  # noqa: BLE001 - logged and returned
            self._errors.failed(error)
            if len(jobs) == 1:
                _log.exception("a step of the synthesis failed")
                return [_failed(error)]
        # One of them, or the size of the batch, may be the cause.
        _log.exception("a step of %d utterances failed; trying each alone", len(jobs))
        return [self._pieces([job])[0] for job in jobs]

    def _run_flow(self, jobs: Sequence[Job]) -> list[_Piece | ParleyError]:
        keeping = [job.utterance for job in jobs if job.utterance.keeps_past]
        prompts = iter(self._prompts.get([utterance.voice for utterance in keeping]))
        rows = [
            job.utterance.row(job.end, next(prompts) if job.utterance.keeps_past else None) for job in jobs
        ]
        mels, pasts = self.flow(rows, keep=bool(keeping))
        finite = _are_finite(mels)
        self._errors.worked()
        return [
            _Piece(mel, pasts.row(index, row.length) if job.utterance.keeps_past else None)
            if finite[index]
            else _not_finite("spectrogram")
            for index, (job, row, mel) in enumerate(zip(jobs, rows, mels, strict=True))
        ]

    def _audio(self, made: Sequence[tuple[Job, _Piece]]) -> list[NDArray[np.int16] | ParleyError]:
        lasts = [job.utterance.is_last(job.end) for job, _ in made]
        audio = vocode(
            self._networks.vocoder,
            [
                VocoderJob(job.utterance.vocoder, job.utterance.frames(piece.mel, job.end, piece.past), last)
                for (job, piece), last in zip(made, lasts, strict=True)
            ],
            self.vocoder_graphs,
        )
        # In one copy, the only one for which the host waits.
        ends = np.cumsum([len(own) for own in audio])
        samples = np.split(torch.cat(audio).cpu().numpy(), ends[:-1])
        return [
            job.utterance.output.push(own, last=last) if np.isfinite(own).all() else _not_finite("waveform")
            for (job, _), own, last in zip(made, samples, lasts, strict=True)
        ]

    def _compute_prompt_pasts(self, voices: Sequence[AudioVoice]) -> list[Past]:
        pasts: list[Past] = []
        longest = max((FRAMES_PER_TOKEN * len(voice.tokens) for voice in voices), default=1)
        # No more than a batch of utterances may have, so that there is a graph for them.
        most = max(
            1, min(*self._buckets.rows[-1:], _PROMPTS, self._max_frames // self.padded_frames(longest))
        )
        for first in range(0, len(voices), most):
            rows = [prompt_row(voice) for voice in voices[first : first + most]]
            batch = self.flow(rows, keep=True)[1]
            pasts += [batch.row(index, row.length) for index, row in enumerate(rows)]
        # All utterances of a voice use its past for as long as it is held.
        if not all(_are_finite([tensor for past in pasts for tensor in past.tensors])):
            raise _not_finite("past of a prompt")
        return pasts


def blank_row(frames: int, past: Past | None) -> FlowRow:
    """A row of ``frames`` frames after ``past``, for a batch of that size."""
    voice = AudioVoice(
        np.ones(SPEAKER_SIZE, np.float32), np.zeros(0, np.int64), np.zeros((0, MEL_BANDS), np.float32)
    )
    zeros = np.zeros(frames // FRAMES_PER_TOKEN, np.int64)
    noise = np.zeros((frames, MEL_BANDS), np.float32)
    return FlowRow(voice, zeros, 0, zeros, zeros, noise, past=() if past is None else (past,))


def _are_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether all values of each tensor are finite; waits for the device once."""
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

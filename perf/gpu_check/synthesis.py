"""S3Gen at its published size, with random weights: against a CPU, and how fast its service speaks."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gpu_check.findings import Findings, Settings, memory_used_mib, once, read_planned, seconds
from parley.errors import ParleyError
from parley.runtime.parameters import Parameters
from parley_torch.models.s3gen import Loaded, prepare_s3gen
from parley_torch.runtime.cuda_graphs import CudaCapture, Repetition
from parley_torch.tts.s3gen.checkpoint import Networks
from parley_torch.tts.s3gen.flow import AudioVoice, Flow, FlowRow, batch_rows
from parley_torch.tts.s3gen.graphs import FlowGraphs
from parley_torch.tts.s3gen.messages import AudioChunk, OpenUtterance
from parley_torch.tts.s3gen.networks import MEL_BANDS, Estimator, TokenEncoder
from parley_torch.tts.s3gen.service import S3GenService
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job, blank_row
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan
from parley_torch.tts.s3gen.vocoder import F0_CONTEXT, HOP, Vocoder
from parley_torch.tts.s3gen.vocoder_state import LEFT, capture_vocoder
from parley_torch.tts.s3gen.window_graphs import VocoderSizes, WindowSizes
from parley_torch.tts.s3gen.windows import AudioWindow, run_windows
from parley_torch.tts.t3.request import TOKENS_PER_SECOND

_CONFIG = Path(__file__).parents[2] / "model_repository" / "s3gen" / "config.pbtxt"
_SETTING = re.compile(r'^parameters \{ key: "(\w+)" value \{ string_value: "([^"]*)" \} \}$', re.MULTILINE)
_SIZES = ((208, (1_100, 704), 8), (64, (1_100, 704), 8), (64, (160, 320), 1), (32, (160, 320), 1))
"""New frames, tokens and frames of the past, rows: what is compared, the largest first."""
_WINDOWS = ((8, 128), (1, 19))
"""Windows and frames of the vocoder's batches: eight streams, and the first audio of one."""
_WAVEFORM_ERROR = 1e-3
"""Largest difference of samples, which are up to 0.99."""
_SESSIONS = (1, 8, 16, 32, 64)
_TOKENS = 250
"""Of each utterance: 10 s."""
_PCM_ERROR = 64
"""Largest difference of samples: the same operations, in batches of other sizes."""
_GUIDED_TOKENS = 150
"""6 s, which with its prompt fits into the largest bucket."""


def check_s3gen(settings: Settings, findings: Findings) -> None:
    """Both kinds of checkpoints: distilled to two steps with its past kept, and guided with ten steps."""
    _check_against_cpu(settings, findings)
    networks = _networks(settings, meanflow=True)
    parameters = sum(p.numel() for part in (networks.flow, networks.vocoder) for p in part.parameters())
    findings.measure("parameters", parameters / 1e6, "million")
    _compare_ways(settings, findings, networks)
    if settings.seconds_left > 0:
        _serve(settings, findings, meanflow=True)
    if settings.seconds_left > 0:
        _serve(settings, findings, meanflow=False)


def _networks(settings: Settings, *, meanflow: bool, kind: torch.dtype | None = None) -> Networks:
    networks = random_networks(8 if settings.small else 1, meanflow=meanflow)
    for network in (networks.flow, networks.vocoder):
        network.to(settings.device)
    if kind is None:
        kind = torch.bfloat16 if settings.device.type == "cuda" else torch.float32
    networks.flow.decoder.estimator.to(kind)
    return networks


def _spoken(synthesizer: AudioSynthesizer, tokens: int) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
    """Mel frames and PCM of one utterance, chunk by chunk."""
    voice, spoken = make_speech(0, tokens)
    utterance = AudioUtterance(voice, Plan(max_step=1), seed=0, rate=24_000)
    utterance.push(spoken)
    utterance.end()
    made, mels = [], []
    while (end := utterance.next_end()) is not None:
        prompts = synthesizer._prompts.get([utterance.voice])  # noqa: SLF001 - the same step, with its mel
        mel, _ = synthesizer.flow([utterance.row(end, prompts[0])], keep=True)
        mels.append(mel[0].float().cpu().numpy())
        (audio,) = synthesizer.step([Job(utterance, end)])
        if isinstance(audio, Exception):
            raise audio
        made.append(audio)
    return np.concatenate(mels, axis=1), np.concatenate(made)


def _check_against_cpu(settings: Settings, findings: Findings) -> None:
    """The device's spectrograms against those of a CPU in float32, operation by operation."""
    reference = AudioSynthesizer(
        _networks(replace(settings, device=torch.device("cpu")), meanflow=True, kind=torch.float32),
        torch.device("cpu"),
    )
    tokens = 50
    expected, pcm = _spoken(reference, tokens)
    scale = float(np.sqrt(np.mean(expected**2)))
    for name, kind, limit in (("float32", torch.float32, 4e-3), ("bfloat16", torch.bfloat16, 3e-2)):
        if kind is torch.bfloat16 and settings.device.type != "cuda":
            continue
        synthesizer = AudioSynthesizer(_networks(settings, meanflow=True, kind=kind), settings.device)
        mel, audio = _spoken(synthesizer, tokens)
        error = float(np.sqrt(np.mean((mel - expected) ** 2))) / scale
        findings.measure(f"{name}: error of the spectrogram against a CPU, of its size", error, "")
        findings.check(f"{name}: spectrogram", error < limit, f"{error:.2g} < {limit:g}")
        findings.check(
            f"{name}: length of the audio", len(audio) == len(pcm) == tokens * 960, f"{len(audio)}"
        )


def _compare_ways(settings: Settings, findings: Findings, networks: Networks) -> None:
    """The same batches operation by operation and as graphs."""
    synthesizer = AudioSynthesizer(networks, settings.device, buckets=_load(settings, networks).buckets)
    sizes = _SIZES[-1:] if settings.small else _SIZES  # a processor takes minutes for the others
    runs = {size: _batch(synthesizer, *size) for size in sizes}
    results = {}
    for size, run in runs.items():
        taken = seconds(run, settings.device, rounds=1 if settings.small else 5)
        results[size] = run()
        findings.measure(f"flow {_named(size)}, operation by operation", 1_000 * taken, "ms")
    _compare_vocoder(settings, findings, networks)
    if settings.device.type != "cuda":
        findings.skipped = "graphs need a GPU"
        return
    synthesizer.graphs = FlowGraphs(networks.flow, CudaCapture())
    for size, run in runs.items():
        taken = once(lambda: _add(synthesizer, *size), settings.device)  # noqa: B023
        findings.measure(f"flow {_named(size)}, capture", taken, "s")
        taken = seconds(run, settings.device)
        findings.measure(f"flow {_named(size)}, graph", 1_000 * taken, "ms")
        error = float((run() - results[size]).abs().max())
        findings.check(f"flow {_named(size)}: a graph computes the same", error < 1e-2, f"{error:.2g}")


def _row(synthesizer: AudioSynthesizer, frames: int, past: tuple[int, int]) -> FlowRow:
    return blank_row(frames, synthesizer.empty.blank(past[0]).cut(past[1]))


def _batch(
    synthesizer: AudioSynthesizer, frames: int, past: tuple[int, int], rows: int
) -> Callable[[], torch.Tensor]:
    batch = [_row(synthesizer, frames, past)] * rows
    return lambda: synthesizer.flow(batch, keep=True)[0][0].float().clone()


@torch.inference_mode()
def _add(synthesizer: AudioSynthesizer, frames: int, past: tuple[int, int], rows: int) -> None:
    batch = [_row(synthesizer, frames, past)] * rows
    workspace = synthesizer._workspace  # noqa: SLF001 - as warm_up does
    assert synthesizer.graphs is not None
    buckets = synthesizer._buckets  # noqa: SLF001
    synthesizer.graphs.add(batch_rows(batch, synthesizer.empty, workspace, buckets, keep=True), keep=True)


@torch.inference_mode()
def _compare_vocoder(settings: Settings, findings: Findings, networks: Networks) -> None:
    """The same windows operation by operation and as graphs; without a GPU as calls that are repeated."""
    vocoder, device = networks.vocoder, settings.device
    frames, rows = (19, 128), (1, 8)
    sizes = VocoderSizes(WindowSizes(frames, rows, F0_CONTEXT), WindowSizes(frames, rows, LEFT))
    graphs = capture_vocoder(vocoder, sizes, settings.capture())
    for count, length in _WINDOWS[-1:] if settings.small else _WINDOWS:
        mels = torch.randn(count, MEL_BANDS, length, device=device)
        sources = 0.1 * torch.randn(count, HOP * length, device=device)
        around = [AudioWindow((mel,), first=False, last=False) for mel in mels]
        windows = [
            AudioWindow((mel, source), first=False, last=False)
            for mel, source in zip(mels, sources, strict=True)
        ]

        def plain() -> torch.Tensor:
            run_windows(vocoder.f0_predictor, around)  # noqa: B023
            return torch.stack(run_windows(vocoder, windows))  # noqa: B023

        def replayed() -> torch.Tensor:
            graphs.pitch.run(around)  # noqa: B023
            return torch.stack(graphs.waveform.run(windows))  # noqa: B023

        ways = {"operation by operation": plain}
        if device.type == "cuda":
            ways["graph"] = replayed
        name = f"vocoder {count} x {length} frames"
        for way, run in ways.items():
            taken = seconds(run, device)
            findings.measure(f"{name}, {way}", 1_000 * taken, "ms")
        error = float((replayed() - plain()).abs().max())
        passed = error < _WAVEFORM_ERROR
        findings.check(f"{name}: a graph computes the same", passed, f"{error:.2g} < {_WAVEFORM_ERROR:g}")


def _load(settings: Settings, networks: Networks) -> Loaded:
    """As the model of the gpu profile does it; without a GPU there are no graphs."""
    own = dict(_SETTING.findall(_CONFIG.read_text())) | read_planned("s3gen", settings.device)
    if settings.device.type != "cuda":
        own |= {"device": "cpu", "graphs": "false", "precision": "float32"}
    if settings.small:
        own |= {"frame_buckets": "208", "past_buckets": "704", "encoder_past_buckets": "1100"}
        own |= {"whole_buckets": "256,640", "row_buckets": "1,8"}
    return prepare_s3gen(Parameters("s3gen", own, environment={}), networks)


def _serve(settings: Settings, findings: Findings, *, meanflow: bool) -> None:
    """The service as the model starts it: sessions that all begin at once, their prompts known."""
    kind = "distilled" if meanflow else "guided"
    networks = _networks(settings, meanflow=meanflow)
    before = memory_used_mib(settings.device)
    loaded = _load(settings, networks)
    began = time.perf_counter()
    service = S3GenService(loaded.synthesizer, loaded.plan, loaded.limits, warm_up=loaded.warm_up)
    findings.measure(f"{kind}: start", time.perf_counter() - began, "s")
    findings.measure(f"{kind}: memory, idle", memory_used_mib(settings.device) - before, "MiB")
    try:
        tokens = 25 if settings.small else _TOKENS if meanflow else _GUIDED_TOKENS
        for sessions in _SESSIONS[:2] if settings.small else _SESSIONS:
            if settings.seconds_left <= 0:
                findings.skipped = f"no time for {sessions} {kind} sessions"
                break
            level = Level(sessions)
            first = once(partial(speak_at_once, service, Level(sessions), tokens), settings.device)
            findings.measure(f"{kind}, {sessions} sessions: first round, with prompts", first, "s")
            for _ in range(2):
                speak_at_once(service, level, tokens)
            findings.measure(f"{kind}, {sessions} sessions: seconds of audio in a second", level.rate, "")
            findings.measure(f"{kind}, {sessions} sessions: first audio p50", _median_ms(level), "ms")
            memory = memory_used_mib(settings.device) - before
            findings.measure(f"{kind}, {sessions} sessions: memory", memory, "MiB")
        if settings.device.type == "cuda" and settings.seconds_left > 0:
            _measure_first_audio(findings, service, loaded.synthesizer, tokens, kind)
    finally:
        service.close()
    synthesizer = loaded.synthesizer
    if settings.device.type == "cpu":  # after the figures: there padding only takes time
        synthesizer.warm_up(loaded.plan, max_frames=loaded.limits.batch.max_frames, capture=Repetition())
    for part, graphs in (("flow", synthesizer.graphs), ("vocoder", synthesizer.vocoder_graphs)):
        assert graphs is not None
        found = f"{len(graphs)} graphs, {graphs.without_graph} runs without"
        findings.check(f"{kind}: every batch of the {part} had a graph", graphs.without_graph == 0, found)
    _check_graphs(settings, findings, loaded, networks, kind)
    assert synthesizer.vocoder_graphs is not None
    found = f"{synthesizer.vocoder_graphs.without_graph} runs without"
    findings.check(f"{kind}: every length had a graph", synthesizer.vocoder_graphs.without_graph == 0, found)


def _measure_first_audio(
    findings: Findings, service: S3GenService, synthesizer: AudioSynthesizer, tokens: int, kind: str
) -> None:
    """One utterance at a time, whose vocoder runs operation by operation."""
    graphs, synthesizer.vocoder_graphs = synthesizer.vocoder_graphs, None
    level = Level(1)
    for _ in range(3):
        speak_at_once(service, level, tokens)
    name = f"{kind}, 1 session, vocoder operation by operation: first audio p50"
    findings.measure(name, _median_ms(level), "ms")
    synthesizer.vocoder_graphs = graphs


def _check_graphs(
    settings: Settings, findings: Findings, loaded: Loaded, networks: Networks, kind: str
) -> None:
    """Utterances of different voices and lengths sound as without graphs, also after a batch without one."""
    plain = AudioSynthesizer(networks, settings.device, buckets=loaded.buckets)
    # Of one window, of two, and of many.
    lengths = (10, 20, 25) if settings.small else (10, 20, 40, 180, 95)
    expected = _spoken_together(plain, loaded.plan, lengths)
    found = _spoken_together(loaded.synthesizer, loaded.plan, lengths)
    loaded.synthesizer.flow([blank_row(700, None)], keep=loaded.plan.keeps_past)  # no bucket is that large
    again = _spoken_together(loaded.synthesizer, loaded.plan, lengths)
    for name, audio in (("graphs", found), ("graphs, after a batch without one", again)):
        errors = [int(np.abs(a.astype(int) - b).max()) for a, b in zip(audio, expected, strict=True)]
        findings.check(
            f"{kind}: the same audio with {name}", max(errors) <= _PCM_ERROR, f"{errors} of 32,767"
        )


def _spoken_together(
    synthesizer: AudioSynthesizer, plan: Plan, lengths: Sequence[int]
) -> list[NDArray[np.int16]]:
    """The PCM of utterances that share every step they can."""
    several = []
    for seed, length in enumerate(lengths):
        voice, tokens = make_speech(seed, length)
        several.append(AudioUtterance(voice, plan, seed=seed, rate=24_000))
        several[-1].push(tokens)
        several[-1].end()
    pieces: list[list[NDArray[np.int16]]] = [[] for _ in several]
    while jobs := [(n, Job(u, end)) for n, u in enumerate(several) if (end := u.next_end()) is not None]:
        for (number, _), made in zip(jobs, synthesizer.step([job for _, job in jobs]), strict=True):
            if isinstance(made, Exception):
                raise made
            pieces[number].append(made)
    return [np.concatenate(own) for own in pieces]


def _median_ms(level: Level) -> float:
    return 1_000 * statistics.median(level.first_audio)


def _named(size: tuple[int, tuple[int, int], int]) -> str:
    frames, (_, past), rows = size
    return f"{rows} x {frames} after {past} frames"


_PROMPT_TOKENS = 75
_DEADLINE_S = 900.0
_VOCABULARY = 6561
# Published widths and numbers of layers.
_ENCODER, _HIDDEN, _HEADS, _LAYERS, _UP_LAYERS = 512, 2048, 8, 6, 4
_ESTIMATOR, _INNER, _BLOCKS, _MID_LEVELS = 256, 512, 4, 12
_VOCODER, _PITCH = 512, 512


@dataclass
class Level:
    """What was measured with a number of sessions."""

    sessions: int
    first_audio: list[float] = field(default_factory=list)
    """Seconds from a session's beginning to its first audio."""
    rates: list[float] = field(default_factory=list)
    """Seconds of audio per second, of each round."""

    @property
    def rate(self) -> float:
        """Of the best round."""
        return max(self.rates)


class _Sink:
    """Notes when the first audio came."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.error: ParleyError | None = None
        self.ended = threading.Event()

    def send(self, chunk: AudioChunk, audio: NDArray[np.int16]) -> bool:  # noqa: ARG002 - not listened to
        self.first = time.perf_counter() if self.first is None else self.first
        return True

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: ParleyError) -> None:
        self.error = error
        self.ended.set()


def speak_at_once(service: S3GenService, level: Level, tokens: int) -> None:
    """Open all sessions at once, with all of their tokens, and wait for their ends.

    Raises:
        ParleyError: a session failed.
        TimeoutError: one had no end.
    """
    sinks = [_Sink() for _ in range(level.sessions)]
    speech = [make_speech(number, tokens) for number in range(level.sessions)]
    began = time.perf_counter()
    for number, (sink, (voice, spoken)) in enumerate(zip(sinks, speech, strict=True)):
        service.open(OpenUtterance(utterance_id=str(number), seed=number, final=True), voice, spoken, sink)
    for sink in sinks:
        if not sink.ended.wait(_DEADLINE_S):
            raise TimeoutError(f"no end within {_DEADLINE_S:g} s")
        if sink.error is not None:
            raise sink.error
    seconds = time.perf_counter() - began
    level.first_audio += [sink.first - began for sink in sinks if sink.first is not None]
    level.rates.append(level.sessions * tokens / TOKENS_PER_SECOND / seconds)


def make_speech(seed: int, tokens: int) -> tuple[AudioVoice, NDArray[np.int64]]:
    """A voice, and tokens for it to speak."""
    rng = np.random.default_rng(seed)
    voice = AudioVoice(
        rng.standard_normal(192).astype(np.float32),
        rng.integers(0, _VOCABULARY, _PROMPT_TOKENS),
        rng.standard_normal((2 * _PROMPT_TOKENS, 80)).astype(np.float32),
    )
    return voice, rng.integers(0, _VOCABULARY, tokens)


def random_networks(fraction: int, *, meanflow: bool = True) -> Networks:
    """Networks whose widths are the published ones divided by ``fraction`` (1 to 8, a power of two)."""
    torch.manual_seed(0)
    encoder = TokenEncoder(_ENCODER // fraction, _HEADS, _HIDDEN // fraction, _LAYERS, _UP_LAYERS)
    estimator = Estimator(_ESTIMATOR // fraction, _INNER // fraction, _BLOCKS, _MID_LEVELS, meanflow=meanflow)
    flow = Flow(_VOCABULARY, encoder, estimator)
    vocoder = Vocoder(_VOCODER // fraction, _PITCH // fraction)
    nn.init.constant_(vocoder.f0_predictor.classifier.bias, 150.0)  # hertz: voiced, as speech mostly is
    for network in (flow, vocoder):
        network.eval().requires_grad_(False)
    return Networks(flow, vocoder)

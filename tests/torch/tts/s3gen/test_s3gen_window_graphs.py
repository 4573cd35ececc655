"""Windows of the vocoder in batches of fixed sizes; repeated calls stand for graphs."""

import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from clicks import seam_scores
from random_streams import random_streams
from s3gen_fakes import CPU, HostReads, Recording, make_tokens, make_voice, stream
from torch.nn import functional

from parley_torch.runtime.cuda_graphs import SharedMemory
from parley_torch.tts.s3gen.scheduling import ChunkSchedule
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan
from parley_torch.tts.s3gen.vocoder_state import VocoderJob, VocoderState, capture_vocoder, vocode
from parley_torch.tts.s3gen.window_graphs import VocoderGraphs, WindowGraphs, WindowSizes
from parley_torch.tts.s3gen.windows import AudioWindow, run_windows

CONTEXT = 3
SIZES = WindowSizes(frames=(12, 20), rows=(1, 2, 4), context=CONTEXT)
KINDS = [(True, False), (False, False), (False, True), (True, True)]


def network(low, high):
    """Each of two values for a frame depends on three frames around it, and on zeros beyond an edge."""
    weight = torch.linspace(0.5, 1.5, 2 * CONTEXT + 1)
    seen = functional.conv1d(low.sum(1, keepdim=True), weight[None, None], torch.ones(1), padding=CONTEXT)
    return (seen[:, 0, :, None] + high.unflatten(1, (-1, 2))).flatten(1)


def windows_of(lengths, kinds=KINDS):
    rng = torch.Generator().manual_seed(0)
    return [
        AudioWindow(
            (torch.randn(5, n, generator=rng), torch.randn(2 * n, generator=rng)), first=first, last=last
        )
        for n in lengths
        for first, last in kinds
    ]


@pytest.fixture
def capture():
    return Recording()


@pytest.fixture
def graphs(capture):
    return WindowGraphs(network, (torch.zeros(5, 1), torch.zeros(2)), SIZES, capture, SharedMemory())


def used(window, result):
    """What of a window's result is used: not what is close to an edge inside the utterance."""
    begin = 0 if window.first else CONTEXT
    end = window.frames - (0 if window.last else CONTEXT)
    return result[2 * begin : 2 * end]


def assert_same(windows, found, expected):
    for window, own, other in zip(windows, found, expected, strict=True):
        assert len(own) == len(other) == 2 * window.frames
        torch.testing.assert_close(used(window, own), used(window, other))


def alone(windows):
    return [network(*(tensor[None] for tensor in window.tensors))[0] for window in windows]


class TestWindowGraphs:
    def test_windows_of_all_kinds_give_what_each_gives_alone(self, graphs, capture):
        # Whole utterances have full tokens.
        windows = windows_of(range(7, 21), KINDS[:3]) + windows_of(range(2, 22, 2), KINDS[3:])
        captured = capture.captured
        assert captured == len(graphs) == len(SIZES.batches())
        for _ in range(2):  # the second time with what the first one left in the shared memory
            assert_same(windows, graphs.run(windows), alone(windows))
        assert_same(windows, run_windows(network, windows), alone(windows))
        assert graphs.without_graph == 0
        assert capture.captured == captured
        assert capture.replayed > 0

    def test_no_windows(self, graphs):
        assert graphs.run([]) == []

    def test_a_short_utterance_is_never_padded_and_a_long_one_is_made_as_two(self, graphs, capture):
        for frames, batches in ((2, 1), (6, 1), (8, 1), (20, 1)):
            before = capture.replayed
            graphs.run(windows_of([frames], KINDS[3:]))
            assert capture.replayed == before + batches
        assert [frames for rows, frames in SIZES.batches() if frames < 12] == [6, 4, 2]
        window = windows_of([8], KINDS[3:])[0]
        left, right = window.halves(CONTEXT)
        assert (left.frames, left.first, left.last) == (7, True, False)
        assert (right.frames, right.first, right.last) == (7, False, True)

    def test_a_window_that_is_too_long_runs_without_a_graph_and_is_counted(self, graphs, capture, caplog):
        windows = windows_of([25, 30])
        captured = capture.captured
        assert_same(windows, graphs.run(windows), alone(windows))
        # The halves of the whole ones have 15 and 18 frames and more.
        assert graphs.without_graph == 2
        assert caplog.text.count("WindowGraphs: no graph for a batch of (") == 1
        assert capture.captured == captured

    def test_values_that_are_not_numbers_stay_in_their_window(self, graphs):
        windows = windows_of([15, 15], KINDS[:1])
        windows[0].tensors[0].fill_(float("nan"))
        spoilt, whole = graphs.run(windows)
        assert spoilt.isnan().any()
        assert not whole.isnan().any()
        # Nor do they wait in the memory that all batches share.
        (later,) = graphs.run(windows[1:])
        torch.testing.assert_close(later, whole)


def spoken(synthesizer, plan, count, pieces, seed=0):
    utterance = AudioUtterance(make_voice(10), plan, seed=seed, rate=24_000)
    return np.concatenate(stream(synthesizer, utterance, make_tokens(count), pieces))


@pytest.fixture(scope="module")
def pair(networks):
    """A synthesizer with the vocoder's graphs, and one without."""
    with_graphs = AudioSynthesizer(networks, CPU)
    with torch.inference_mode():
        with_graphs.vocoder_graphs = capture_vocoder(
            networks.vocoder, Plan().vocoder_sizes((1, 2, 4)), Recording()
        )
    return with_graphs, AudioSynthesizer(networks, CPU)


# Whole utterances in one step, in two, and in chunks that come together or one by one.
@pytest.mark.parametrize(
    ("count", "pieces"),
    [(1, 1), (3, 1), (14, 14), (15, 15), (17, 3), (25, 25), (40, 2), (112, 112), (160, 5)],
)
def test_utterances_sound_as_without_graphs(pair, count, pieces):
    found, expected = (spoken(synthesizer, Plan(), count, pieces) for synthesizer in pair)
    assert len(found) == 960 * count
    assert np.abs(expected).max() > 300
    assert np.abs(found.astype(int) - expected).max() <= 3
    assert pair[0].vocoder_graphs.without_graph == 0


def test_utterances_that_share_batches_sound_as_alone(pair):
    with_graphs, without = pair
    counts = (3, 14, 28, 28, 60, 8)
    several = [AudioUtterance(make_voice(10), Plan(), seed=n, rate=24_000) for n in range(len(counts))]
    audio = [[] for _ in several]
    for utterance, count in zip(several, counts, strict=True):
        utterance.push(make_tokens(count))
        utterance.end()
    while jobs := [(n, Job(u, u.next_end())) for n, u in enumerate(several) if u.next_end() is not None]:
        for (n, _), made in zip(jobs, with_graphs.step([job for _, job in jobs]), strict=True):
            audio[n].append(made)
    for n, count in enumerate(counts):
        expected = spoken(without, Plan(), count, count, seed=n)
        assert np.abs(np.concatenate(audio[n]).astype(int) - expected).max() <= 3
    assert with_graphs.vocoder_graphs.without_graph == 0


def test_seams_are_no_rougher_with_graphs(pair):
    scores = []
    for one in random_streams(pair[0], random.Random(7), 6):
        assert one.clicks() == []
        scores += list(seam_scores(one.audio, one.seams(), one.rate))
    assert len(scores) > 10
    assert max(scores) < 1.5


PLANS = [
    Plan(max_step=100),
    Plan(),
    Plan(max_step=1),
    Plan(full_attention=True),
    Plan(full_attention=True, schedule=ChunkSchedule((4, 8, 16))),
    Plan(full_attention=True, schedule=ChunkSchedule((1, 2)), max_step=1),
    Plan(schedule=ChunkSchedule((5,)), max_step=30, hold_back=16),
    Plan(schedule=ChunkSchedule((1, 2)), max_step=1, hold_back=8),
    Plan(schedule=ChunkSchedule((20, 7, 40)), max_step=60, hold_back=0),
]


def silent_graphs(sizes):
    """Graphs of networks that only have the shapes of results."""
    memory = SharedMemory()

    def graphs(network, *shapes, of):
        return WindowGraphs(network, [torch.zeros(shape) for shape in shapes], of, Recording(), memory)

    return VocoderGraphs(
        pitch=graphs(lambda mel: mel[:, 0], (80, 1), of=sizes.pitch),
        waveform=graphs(lambda mel, source: source, (80, 1), (480,), of=sizes.waveform),
    )


@pytest.mark.parametrize("plan", PLANS)
def test_every_window_that_a_plan_can_make_has_a_graph(plan):
    graphs = silent_graphs(plan.vocoder_sizes((1, 2, 4, 8)))
    mix = SimpleNamespace(weight=torch.ones(1, 9), bias=torch.zeros(1))
    vocoder = SimpleNamespace(f0_predictor=None, m_source=SimpleNamespace(l_linear=mix))
    rng = random.Random(1)
    counts = [*range(1, 40), 101, 102, 103, 111, 112, 113, 114, 188, 189, 202, 203, 300, 301, 302, 303]
    for eight in [counts[n : n + 8] for n in range(0, len(counts), 8)]:
        pace = rng.choice((1, 4, 25, 1_000))
        several = [AudioUtterance(make_voice(0), plan, seed=n, rate=24_000) for n in range(len(eight))]
        while not all(utterance.finished for utterance in several):
            jobs = []
            for utterance, count in zip(several, eight, strict=True):
                if not utterance.ended:
                    utterance.push(np.zeros(min(pace, count - utterance.tokens), np.int64))
                    if utterance.tokens == count:
                        utterance.end()
                if (end := utterance.next_end()) is not None:
                    mel = torch.zeros(80, 2 * end)
                    last = utterance.is_last(end)
                    jobs.append(VocoderJob(utterance.vocoder, utterance.frames(mel, end), last))
            if jobs:
                vocode(vocoder, jobs, graphs)
        assert all(u.vocoder._sent == 2 * count for u, count in zip(several, eight, strict=True))
    assert graphs.without_graph == 0


def test_a_stream_whose_tokens_never_wait_is_hardly_padded():
    """Its windows have sizes of their own: the first audio is as long as it must be."""
    sizes = Plan(max_step=100).vocoder_sizes((1,))
    assert sizes.waveform.frames == (19, 45, 78, 128, 237)
    assert sizes.pitch.frames == (24, 36, 60, 110, 214)
    for of in (sizes.waveform, sizes.pitch):
        assert all(small <= 0.9 * large for small, large in pairwise(of.frames))


def test_the_number_of_graphs_follows_from_the_settings():
    sizes = Plan(max_step=100).vocoder_sizes((1, 2, 4, 8))
    assert (len(sizes.waveform.batches()), len(sizes.pitch.batches())) == (4 * 5 + 16, 4 * 5 + 5)


def test_the_host_waits_for_nothing_in_a_step_of_the_vocoder(networks):
    mels = [torch.randn(80, frames) for frames in (24, 26, 28)]
    jobs = [VocoderJob(VocoderState(seed, 12), mel, last=False) for seed, mel in enumerate(mels)]
    with torch.inference_mode():
        for _ in range(2):
            with HostReads() as reads:
                audio = vocode(networks.vocoder, jobs)
            assert all(len(own) for own in audio)
            assert reads.operations == []


def test_chunks_of_which_no_pitch_is_certain_yet_wait(networks):
    synthesizer = AudioSynthesizer(networks, CPU)
    plan = Plan(schedule=ChunkSchedule((1, 2)), max_step=1)
    found, expected = (spoken(synthesizer, replace(plan, max_step=step), 12, 12) for step in (1, 200))
    assert len(found) == len(expected) == 12 * 960
    assert np.abs(found.astype(int) - expected).max() <= 3


CROSSFADED = Plan(full_attention=True, schedule=ChunkSchedule((4, 8, 16)), max_step=16)


def test_chunks_of_which_all_frames_wait_for_the_crossfade_have_no_windows():
    """Eight frames wait, which are those of the first chunk."""
    sizes = CROSSFADED.vocoder_sizes((1, 2))
    # Frames after each chunk: 0, 16, 48, 80, ...
    assert sizes.pitch.frames == (16, 42, 54)
    assert min(sizes.waveform.frames) > 0
    assert Plan(full_attention=True, schedule=ChunkSchedule((1, 2))).vocoder_sizes((1,)).pitch.frames[0] == 2


@pytest.mark.parametrize("chunks", [(4, 8, 16), (1,), (2, 3)])
def test_a_step_without_new_frames_fails_no_utterance_of_its_batch(networks, chunks):
    plan = replace(CROSSFADED, schedule=ChunkSchedule(chunks), max_step=max(chunks))
    with_graphs = AudioSynthesizer(networks, CPU)
    with torch.inference_mode():
        sizes = plan.vocoder_sizes((1, 2, 4))
        with_graphs.vocoder_graphs = capture_vocoder(networks.vocoder, sizes, Recording())
    for synthesizer in (AudioSynthesizer(networks, CPU), with_graphs):
        counts = (30, 30, 4, 1)
        several = [AudioUtterance(make_voice(10), plan, seed=1, rate=24_000) for _ in counts]
        made = dict.fromkeys(several, 0)
        for utterance, count in zip(several, counts, strict=True):
            utterance.push(make_tokens(count))
            utterance.end()
        joined = several[:1]  # the others come when its first steps are made
        while jobs := [Job(u, u.next_end()) for u in joined if u.next_end() is not None]:
            for job, pcm in zip(jobs, synthesizer.step(jobs), strict=True):
                made[job.utterance] += len(pcm)
            joined = several if made[several[0]] else joined
        assert list(made.values()) == [960 * count for count in counts]
    assert with_graphs.vocoder_graphs.without_graph == 0

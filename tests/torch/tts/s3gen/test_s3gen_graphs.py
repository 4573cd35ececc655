"""A graph for each size of a batch, captured before the first utterance; repeated calls stand for graphs."""

import threading
from pathlib import Path

import fake_pb_utils
import numpy as np
import pytest
import torch
from google.protobuf import text_format
from s3gen_fakes import CPU, Recording, make_tokens, make_voice, stream
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.errors import ModelLoadingError
from parley.runtime.parameters import Parameters
from parley_torch.models import s3gen as s3gen_module
from parley_torch.models.s3gen import S3GenModel, load_s3gen, prepare_s3gen
from parley_torch.tts.chatterbox.limits import ChatterboxLimits
from parley_torch.tts.s3gen.flow import Buckets
from parley_torch.tts.s3gen.graphs import batch_size
from parley_torch.tts.s3gen.scheduling import S3GenLimits, Work, choose_batch
from parley_torch.tts.s3gen.service import S3GenService, ServiceLimits
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan

REPOSITORY = Path(__file__).parents[4] / "model_repository"
BUCKETS = Buckets(frames=(32, 64, 208), rows=(1, 2, 4), past=((60, 120), (150, 200), (400, 200)))
WHOLE = Buckets(frames=(160, 320), rows=(1, 2))


def ready(networks, plan, buckets, max_frames=8_192):
    capture = Recording()
    synthesizer = AudioSynthesizer(networks, CPU, buckets=buckets)
    synthesizer.warm_up(plan, max_frames=max_frames, capture=capture)
    return synthesizer, capture


def utterances(plan, count):
    return [AudioUtterance(make_voice(20 + n, n), plan, seed=n, rate=24_000) for n in range(count)]


def spoken_together(synthesizer, plan, lengths):
    """The PCM of utterances that share every step they can."""
    several = utterances(plan, len(lengths))
    for number, (utterance, length) in enumerate(zip(several, lengths, strict=True)):
        utterance.push(make_tokens(length, number))
        utterance.end()
    audio = [[] for _ in several]
    while jobs := [(n, Job(u, u.next_end())) for n, u in enumerate(several) if u.next_end() is not None]:
        for (number, _), made in zip(jobs, synthesizer.step([job for _, job in jobs]), strict=True):
            audio[number].append(made)
    return [np.concatenate(pieces) for pieces in audio]


@pytest.mark.parametrize("guided", [False, True])
def test_every_batch_of_an_utterance_has_a_graph_and_sounds_as_without(networks, guided_networks, guided):
    plan = Plan(max_step=100, past_tokens=40, recompute=guided)
    network, buckets = (guided_networks, WHOLE) if guided else (networks, BUCKETS)
    synthesizer, capture = ready(network, plan, buckets)
    captured = capture.captured
    assert len(synthesizer.graphs) == len(buckets.sizes(8_192))
    assert captured == len(synthesizer.graphs) + len(synthesizer.vocoder_graphs)
    lengths = (90, 25) if guided else (300, 12, 75)
    found = spoken_together(synthesizer, plan, lengths)
    expected = spoken_together(AudioSynthesizer(network, CPU, buckets=buckets), plan, lengths)
    for audio, other, length in zip(found, expected, lengths, strict=True):
        assert len(audio) == 960 * length
        assert np.abs(audio.astype(int) - other).max() <= 2  # rounding
    assert synthesizer.graphs.without_graph == synthesizer.vocoder_graphs.without_graph == 0
    assert capture.captured == captured
    assert capture.replayed > len(synthesizer.graphs)


def test_a_size_without_a_graph_runs_all_the_same_and_nothing_is_captured(networks):
    plan = Plan(max_step=100, past_tokens=40)
    small = Buckets(frames=(32,), rows=(1,), past=((60, 120),))
    synthesizer, capture = ready(networks, plan, small)
    captured = capture.captured
    (audio,) = spoken_together(synthesizer, plan, (200,))
    (expected,) = spoken_together(AudioSynthesizer(networks, CPU, buckets=small), plan, (200,))
    assert np.abs(audio.astype(int) - expected).max() <= 2
    assert synthesizer.graphs.without_graph > 0
    assert capture.captured == captured
    # The larger batches had memory of their own meanwhile: the graph finds its input where it was.
    again = spoken_together(synthesizer, plan, (12,))[0]
    first = spoken_together(AudioSynthesizer(networks, CPU, buckets=small), plan, (12,))[0]
    assert np.abs(again.astype(int) - first).max() <= 2


def test_many_prompts_at_once_have_a_graph_too(networks):
    buckets = Buckets(frames=(64,), rows=(1, 2, 4), past=((60, 120),))
    # Four rows of 64 frames are more than 200; eight prompts wait at once.
    synthesizer, _ = ready(networks, Plan(), buckets, max_frames=200)
    assert [rows for _, _, rows in buckets.sizes(200)] == [4, 2, 1]
    synthesizer.prepare(utterances(Plan(), 8))
    assert synthesizer.graphs.without_graph == 0


def test_sizes_that_no_batch_can_have_get_no_graph():
    sizes = Buckets(frames=(100, 1_000), rows=(1, 2, 4, 8)).sizes(max_frames=3_000)
    # Three rows of 1,000 frames are padded to four; five are too many.
    assert [(frames, rows) for frames, _, rows in sizes] == [
        *((1_000, rows) for rows in (4, 2, 1)),
        *((100, rows) for rows in (8, 4, 2, 1)),
    ]


def test_both_pasts_are_padded_to_the_same_size():
    buckets = Buckets(past=((160, 320), (1_100, 704)))
    assert buckets.round_past(0, 0) == (160, 320)
    assert buckets.round_past(160, 320) == (160, 320)
    assert buckets.round_past(161, 10) == (1_100, 704)
    assert buckets.round_past(10, 321) == (1_100, 704)
    assert buckets.round_past(1_101, 10) == (1_101, 10)


def test_the_encoders_past_may_have_a_size_between():
    """The estimator's past has long reached its bound when the encoder's still grows."""
    buckets = Buckets(frames=(32, 64), rows=(1, 4), past=((160, 320), (400, 704), (1_100, 704)))
    assert buckets.round_past(161, 10) == (400, 704)
    assert buckets.round_past(401, 704) == (1_100, 704)
    sizes = buckets.sizes(8_192)
    assert len(sizes) == len(set(sizes)) == 12
    # Memory of all graphs is that of the first one.
    frames, (tokens, past), rows = sizes[0]
    assert (frames, tokens, past, rows) == (64, 1_100, 704, 4)


class Sizes:
    """Notes the size of each batch, and runs it."""

    def __init__(self, flow):
        self._flow = flow
        self.met = set()

    def run(self, batch, *, keep):
        rows, tokens, past_tokens, past_frames, _ = batch_size(batch, keep=keep)
        self.met.add((2 * tokens, (past_tokens, past_frames), rows))
        return self._flow(batch, keep=keep), batch.past


@pytest.mark.parametrize("meanflow", [True, False])
def test_the_gpu_profile_has_a_graph_for_every_batch_of_its_longest_segment(tmp_path, meanflow):
    from chatterbox_export.small_s3gen import write_small_s3gen

    path = write_small_s3gen(tmp_path, width=32, layers=1, channels=16, meanflow=meanflow)
    own = {"weights": str(path.parent), "graphs": "false", "steps": "1"}
    loaded = load_s3gen(gpu_profile(own), "none")
    synthesizer = loaded.synthesizer
    synthesizer.graphs = sizes = Sizes(synthesizer._networks.flow)
    utterance = AudioUtterance(make_voice(loaded.max_prompt), loaded.plan, seed=0, rate=24_000)
    stream(synthesizer, utterance, make_tokens(ChatterboxLimits.max_tokens), 5)
    # Prompts of eight voices at once, and batches that the scheduler makes of what is ready together.
    synthesizer.prepare(
        [AudioUtterance(make_voice(loaded.max_prompt, n), loaded.plan, seed=n, rate=24_000) for n in range(8)]
    )
    for rows in range(2, 9):
        several = [AudioUtterance(make_voice(5, n), loaded.plan, seed=n, rate=24_000) for n in range(rows)]
        for utterance in several:
            utterance.push(make_tokens(120))
            utterance.end()
        while ready := [u for u in several if u.next_end() is not None]:
            work = [Work(u, synthesizer.padded_frames(u.frames_until(u.next_end())), 0.0) for u in ready]
            chosen = [one.key for one in choose_batch(work, loaded.limits.batch)]
            synthesizer.step([Job(u, u.next_end()) for u in chosen])
    prepared = synthesizer._buckets.sizes(loaded.limits.batch.max_frames)
    assert sizes.met <= set(prepared)
    assert len(sizes.met) > 3
    if meanflow:  # its state fits into the buckets with the prompt, too
        assert {past for _, past, _ in sizes.met} == {(160, 320), (1_100, 704)}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"max_prompt_tokens": "250"}, "frame_buckets is 208"),
        ({"past_tokens": "500"}, "past_buckets is 704"),
        ({"past_tokens": "0"}, "past_buckets is 704"),
        ({"max_tokens": "1500"}, "encoder_past_buckets is 1100"),
        ({"max_step": "150"}, "frame_buckets is 208"),
        # The last chunk is longer than the others by the tokens that were to be look-ahead.
        ({"frame_buckets": "32,64,128,200"}, "frame_buckets is 200"),
        ({"max_batch": "16"}, "row_buckets is 8"),
        ({"frame_buckets": ""}, "frame_buckets is 0"),
        ({"past": "recomputed", "max_tokens": "1500"}, "whole_buckets is 2208"),
    ],
)
def test_settings_that_would_leave_batches_without_a_graph_are_refused(on_cpu, networks, values, name):
    with pytest.raises(ModelLoadingError, match=f"the largest of {name}: by the other settings"):
        prepare_s3gen(gpu_profile(values), networks)


def gpu_profile(values):
    config = text_format.Parse((REPOSITORY / "s3gen/config.pbtxt").read_text(), ModelConfig())
    own = {name: value.string_value for name, value in config.parameters.items()}
    assert own["graphs"] == "true"
    return Parameters("s3gen", {**own, "device": "cpu", "precision": "float32", **values}, environment={})


@pytest.fixture
def on_cpu(monkeypatch):
    """Calls that are repeated stand for the profile's graphs."""
    captures = []

    def capture():
        captures.append(Recording())
        return captures[-1]

    monkeypatch.setattr(s3gen_module, "_graphs", lambda *_: True)
    monkeypatch.setattr(s3gen_module, "CudaCapture", capture)
    return captures


def test_the_model_has_its_graphs_before_it_takes_requests(on_cpu, monkeypatch, networks):
    small = {
        "frame_buckets": "208",
        "past_buckets": "704",
        "encoder_past_buckets": "1100",
        "row_buckets": "1",
    }
    loaded = prepare_s3gen(gpu_profile({**small, "max_batch": "1"}), networks)
    monkeypatch.setattr(s3gen_module, "load_s3gen", lambda *_: loaded)
    model = S3GenModel(fake_pb_utils, Parameters("s3gen", {}, environment={}))
    try:
        (capture,) = on_cpu
        assert len(loaded.synthesizer.graphs) == 1
        assert capture.captured == 1 + len(loaded.synthesizer.vocoder_graphs)
    finally:
        model.close()


def test_graphs_are_captured_by_the_thread_that_serves(networks):
    plan = Plan(max_step=100)
    capture = Recording()
    synthesizer = AudioSynthesizer(networks, CPU, buckets=Buckets(frames=(32,), rows=(1,), past=((60, 120),)))
    service = S3GenService(
        synthesizer,
        plan,
        ServiceLimits(batch=S3GenLimits()),
        warm_up=lambda: synthesizer.warm_up(plan, max_frames=8_192, capture=capture),
    )
    try:
        assert len(synthesizer.graphs) == 1  # before anything can be opened
        assert [thread.name for thread in capture.threads] == ["s3gen"]
    finally:
        service.close()


def test_graph_that_cannot_be_prepared_is_not_served(networks):
    def warm_up():
        raise torch.OutOfMemoryError("no memory for graphs")

    with pytest.raises(torch.OutOfMemoryError, match="no memory for graphs"):
        S3GenService(
            AudioSynthesizer(networks, CPU), Plan(), ServiceLimits(batch=S3GenLimits()), warm_up=warm_up
        )
    assert not [thread for thread in threading.enumerate() if thread.name == "s3gen" and thread.is_alive()]

"""From settings and files to a synthesizer, and from tensors to a voice."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from s3gen_fakes import make_tokens, stream
from safetensors.torch import save_file

from parley.errors import InvalidMessageError, ModelLoadingError, WeightsNotFoundError
from parley.runtime.parameters import Parameters
from parley_torch.models.s3gen import load_s3gen, read_voice
from parley_torch.tts.chatterbox.files import S3GEN
from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.utterance import AudioUtterance


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    from chatterbox_export.small_s3gen import write_small_s3gen

    return write_small_s3gen(tmp_path_factory.mktemp("weights"), width=32, layers=1, channels=16).parent


def settings(weights, **values):
    return Parameters("s3gen", {"weights": str(weights), **values}, environment={})


def test_a_model_with_its_own_settings(weights, voice):
    loaded = load_s3gen(
        settings(
            weights,
            chunks="8,20",
            hold_back="14",
            max_tokens="90",
            frame_buckets="40,200",
            past_buckets="100,250,250",
            encoder_past_buckets="50,90,130",
            row_buckets="1,2",
            past_tokens="60",
        ),
        "none",
    )
    assert loaded.plan.schedule.sizes == (8, 20)
    assert loaded.plan.hold_back == 14
    assert loaded.plan.past_tokens == 60
    utterance = AudioUtterance(voice, loaded.plan, seed=0, rate=24_000)
    assert sum(map(len, stream(loaded.synthesizer, utterance, make_tokens(90), 30))) == 90 * 960


def test_only_the_thread_that_runs_the_networks_uses_several_cores(weights):
    synthesizer = load_s3gen(settings(weights, threads="2"), "none").synthesizer

    def threads():
        synthesizer.begin()
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as own:
        assert own.submit(threads).result() == 2
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("meanflow", "values", "keeps"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"past": "kept"}, True),
        (True, {"past": "recomputed"}, False),
        (True, {"attention": "full"}, False),
    ],
)
def test_when_the_past_is_kept(tmp_path, voice, meanflow, values, keeps):
    from chatterbox_export.small_s3gen import write_small_s3gen

    path = write_small_s3gen(tmp_path, width=32, layers=1, channels=16, meanflow=meanflow)
    past = {"past_buckets": "80", "encoder_past_buckets": "40"}
    buckets = {"frame_buckets": "40", "whole_buckets": "200", "row_buckets": "1", **past}
    loaded = load_s3gen(settings(path.parent, **buckets, **values), "none")
    assert loaded.plan.keeps_past == keeps
    assert loaded.synthesizer.padded_frames(1) == (40 if keeps else 200)
    utterance = AudioUtterance(voice, loaded.plan, seed=0, rate=24_000)
    assert sum(map(len, stream(loaded.synthesizer, utterance, make_tokens(30), 30))) == 30 * 960


@pytest.mark.parametrize(
    "values",
    [
        {"chunks": "0"},
        {"past": "never"},
        {"past_buckets": "0"},
        {"past_buckets": "320"},
        {"past_buckets": "320,320", "encoder_past_buckets": "160,160"},
        {"past_buckets": "320,160", "encoder_past_buckets": "160,160"},
        {"graphs": "true"},
        {"precision": "int8"},
        {"precision": "float16"},
        {"attention": "none"},
        {"device": "tpu"},
        {"frame_buckets": "3,2"},
        {"max_batch": "0"},
    ],
)
def test_settings_that_make_no_sense(weights, values):
    with pytest.raises(ModelLoadingError):
        load_s3gen(settings(weights, **values), "none")


def test_lower_precision_sounds_alike(weights, voice):
    mels = []
    for precision in ("float32", "bfloat16"):
        loaded = load_s3gen(settings(weights, precision=precision), "none")
        utterance = AudioUtterance(voice, loaded.plan, seed=0, rate=24_000)
        utterance.push(make_tokens(30))
        mels.append(loaded.synthesizer.flow([utterance.row(12)])[0][0])
    difference = (mels[0] - mels[1]).abs()
    assert 0 < difference.mean() < 0.05 * mels[0].std()


def test_weights_that_are_not_there(tmp_path):
    with pytest.raises(WeightsNotFoundError):
        load_s3gen(settings(tmp_path), "none")


def test_files_that_are_something_else(tmp_path, weights):
    path = tmp_path / S3GEN[0]
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ModelLoadingError, match="cannot be read"):
        checkpoint.load(path)
    save_file({"flow.input_embedding.weight": torch.zeros(3, 4)}, path)
    with pytest.raises(ModelLoadingError, match="does not hold S3Gen"):
        checkpoint.load(path)


def tensors(prompt=10, **changes):
    good = {
        "SPEAKER": np.ones(192, np.float32),
        "PROMPT_TOKENS": np.arange(prompt, dtype=np.int32),
        "PROMPT_MEL": np.arange(160 * prompt, dtype=np.float32).reshape(-1, 80),
    }
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def test_a_voice_keeps_the_end_of_its_prompt():
    voice = read_voice(tensors(), 4)
    assert voice.tokens.tolist() == [6, 7, 8, 9]
    assert voice.mel.shape == (8, 80)
    assert voice.mel[0, 0] == 12 * 80
    assert len(read_voice(tensors(), 10).tokens) == 10
    assert len(read_voice(tensors(0), 10).tokens) == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"SPEAKER": None}, "no SPEAKER"),
        ({"SPEAKER": np.ones(3, np.float32)}, "3 values"),
        ({"PROMPT_MEL": np.ones((19, 80), np.float32)}, r"must be \[20, 80\]"),
        ({"PROMPT_MEL": np.full((20, 80), np.inf, np.float32)}, "not numbers"),
        ({"PROMPT_TOKENS": np.zeros(5_000, np.int32)}, "5000 tokens"),
    ],
)
def test_voices_that_do_not_fit(changes, text):
    with pytest.raises(InvalidMessageError, match=text):
        read_voice(tensors(**changes), 100)


def test_a_watermark_needs_its_package(weights):
    with pytest.raises(ModelLoadingError, match="resemble-perth is not installed"):
        load_s3gen(settings(weights, watermark="on"), "none")
    assert load_s3gen(settings(weights), "none").plan.watermark is None


class Doubling:
    """Marks audio by making it louder, and later."""

    def __init__(self):
        self.held = np.zeros(0, np.float32)

    def begin(self):
        return Doubling()

    def push(self, audio, *, last):
        self.held = np.append(self.held, 2 * audio)
        until = len(self.held) if last else max(len(self.held) - 1000, 0)
        given, self.held = self.held[:until], self.held[until:]
        return given


def test_all_audio_is_marked(weights, voice):
    loaded = load_s3gen(settings(weights), "none")
    plain, marked = (
        np.concatenate(
            stream(
                loaded.synthesizer,
                AudioUtterance(voice, dataclasses.replace(loaded.plan, watermark=mark), seed=0, rate=24_000),
                make_tokens(60),
                20,
            )
        )
        for mark in (None, Doubling())
    )
    assert len(plain) == len(marked)
    np.testing.assert_allclose(marked, np.clip(2.0 * plain, -32767, 32767), atol=1.01)

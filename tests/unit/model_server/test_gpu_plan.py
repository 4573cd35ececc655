"""Memory plans: which one counts, what it sets, and that it fits its GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import memory_plans as sums
import pytest
from fake_nvml import GIB, FakeNvml
from gpu_check.language import QWEN3_4B, T3_LAYERS, T3_WIDTH

from parley.errors import ModelLoadingError
from parley.runtime import gpu_memory
from parley.runtime.gpu_plan import Gpu, choose_plan, find_gpu, find_plan, planned_settings, read_plans
from parley.runtime.parameters import Parameters
from parley_torch.asr.memory import (
    NEMOTRON_DECODER,
    NEMOTRON_ENCODER,
    PARAKEET_DECODER,
    PARAKEET_ENCODER,
    encoder_parameters,
)

PLANS = {plan.name: plan for plan in read_plans()}
# Bytes of keys and values: of a token, and of a position in both streams of T3's guidance, in two bytes each.
QWEN3_TOKEN = 4 * QWEN3_4B["num_hidden_layers"] * QWEN3_4B["num_key_value_heads"] * QWEN3_4B["head_dim"]
T3_TOKEN = 4 * T3_LAYERS * T3_WIDTH * 2
# Of a session; half of the sessions speak at once, with 400 positions each.
LEAST_CACHES = {"qwen3": 2_048 * QWEN3_TOKEN, "t3": 200 * T3_TOKEN}


@pytest.fixture
def machine(monkeypatch):
    def install(*sizes, **options):
        nvml = FakeNvml(sizes, **options) if sizes else None
        monkeypatch.setattr(gpu_memory, "open_nvml", lambda: nvml)

    return install


# As NVML gives them: a T4 with ECC, one of 16 GiB, an L4, one of 24 GiB, an L40S, H100, A100, H200 and B200.
@pytest.mark.parametrize(
    ("mib", "name"),
    [
        (15_109, "T4"),
        (16_376, "T4"),
        (23_034, "L4"),
        (24_564, "L4"),
        (46_068, "L40S"),
        (81_559, "H100"),
        (81_920, "H100"),
        (143_771, "H200"),
        (183_359, "H200"),
    ],
)
def test_the_largest_plan_that_the_gpu_holds_is_chosen(machine, mib, name):
    machine(mib / 1024)
    assert find_plan({}) is PLANS[name]
    assert find_plan({"PARLEY_GPU_CLASS": "auto"}) is PLANS[name]


# A T4, a Quadro RTX 6000 and a Quadro RTX 8000.
@pytest.mark.parametrize(("mib", "name"), [(15_109, "T4"), (24_220, "L4"), (23_034, "T4"), (46_080, "L4")])
def test_a_gpu_without_bfloat16_gets_a_plan_that_it_holds_in_float32(machine, mib, name):
    machine(mib / 1024, capabilities=[(7, 5)])
    assert not find_gpu({}).has_bfloat16
    assert find_plan({}) is PLANS[name]
    machine(mib / 1024, capabilities=[(8, 0)])
    assert find_gpu({}).has_bfloat16


def test_a_class_may_be_named_by_each_of_its_gpus(machine):
    machine(80)
    assert find_plan({"PARLEY_GPU_CLASS": "A10G"}) is find_plan({"PARLEY_GPU_CLASS": "L4"}) is PLANS["L4"]
    assert find_plan({"PARLEY_GPU_CLASS": "none"}) is None
    with pytest.raises(ModelLoadingError, match=r"'B200'; it must be one of T4, L4, A10G, .* auto or none"):
        find_plan({"PARLEY_GPU_CLASS": "B200"})


def test_without_a_gpu_there_is_no_plan(machine):
    machine()
    assert find_plan({}) is None
    assert planned_settings("qwen3", {}) == {}
    machine(80)
    for hidden in ("", "-1", "7", "-1,0", "GPU-7", "NoDevFiles"):
        assert find_gpu({"CUDA_VISIBLE_DEVICES": hidden}) is None


def test_a_gpu_that_is_too_small_for_every_plan_is_refused():
    with pytest.raises(ModelLoadingError, match=r"Small has 8\.0 GiB; .* PARLEY_GPU_CLASS=none"):
        choose_plan(Gpu("Small", 8 * GIB))


def test_the_first_visible_gpu_counts(machine):
    machine(15, 80)
    assert find_gpu({}) == Gpu("GPU 0", 15 * GIB)
    assert find_gpu({"CUDA_VISIBLE_DEVICES": "1,0"}) == Gpu("GPU 1", 80 * GIB)
    for uuid in ("GPU-1d1f2a3b", "GPU-1d1f", "GPU-1"):
        assert find_gpu({"CUDA_VISIBLE_DEVICES": uuid}) == Gpu("GPU 1", 80 * GIB)
    with pytest.raises(ModelLoadingError, match="a part of a GPU; name the class"):
        find_gpu({"CUDA_VISIBLE_DEVICES": "MIG-1"})


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "GPU-0"}])
def test_the_whole_memory_of_a_divided_gpu_does_not_count(machine, visible):
    machine(80, 80, divided=(0,))
    with pytest.raises(ModelLoadingError, match=r"GPU (0|GPU-0) is divided \(MIG\).*in PARLEY_GPU_CLASS"):
        find_plan(visible)
    assert find_plan({**visible, "PARLEY_GPU_CLASS": "L4"}) is PLANS["L4"]
    assert find_plan({"CUDA_VISIBLE_DEVICES": "1"}) is PLANS["H100"]


def load(model, environment, **values):
    config = {"parameters": {name: {"string_value": value} for name, value in values.items()}}
    args = {
        "model_name": model,
        "model_repository": f"/{model}",
        "model_version": "1",
        "model_config": json.dumps(config),
    }
    return Parameters.from_args(args, environment=environment)


def test_a_plan_counts_over_the_configuration_and_the_environment_over_both():
    planned = {"PARLEY_GPU_CLASS": "L4"}
    read = load("s3gen", planned, memory_plan="true", max_utterances="128", idle_s="10")
    assert read.integer("max_utterances", 0) == 8
    assert read.integer("idle_s", 0) == 10
    read = load("s3gen", {**planned, "PARLEY_S3GEN_MAX_UTTERANCES": "5"}, memory_plan="true")
    assert read.integer("max_utterances", 0) == 5


def test_models_of_other_profiles_follow_no_plan():
    assert load("qwen3", {"PARLEY_GPU_CLASS": "H100"}).number("kv_cache_gib", 0) == 0
    assert load("qwen3", {"PARLEY_GPU_CLASS": "H100"}, memory_plan="true").number("kv_cache_gib", 0) == 30


def test_a_model_without_memory_is_refused_plainly():
    with pytest.raises(ModelLoadingError, match=r"class T4 has no memory for t3 beside .*=none loads it"):
        load("t3", {"PARLEY_GPU_CLASS": "T4"}, memory_plan="true")
    assert load("t3", {"PARLEY_GPU_CLASS": "none"}, memory_plan="true").model == "t3"


def test_plans_set_only_what_models_have_that_follow_them():
    for plan in PLANS.values():
        for model in plan.settings:
            assert sums.read_settings(model, plan).text("memory_plan", "") == "true"
            assert model not in plan.without
        # A setting of a model that is left out would be read by no model.
        assert plan.without <= {path.name for path in sums.REPOSITORY.iterdir()}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_plan_fits_its_gpu_with_some_to_spare(name, has_bfloat16):
    plan = PLANS[name]
    parts = sums.needs(plan, has_bfloat16=has_bfloat16)
    needed = sum(need.total for need in parts.values())
    offered = plan.memory_gib if has_bfloat16 else plan.float32_gib
    assert needed <= (1 - sums.SPARE) * offered * GIB
    for model in LEAST_CACHES.keys() - plan.without:
        needed = sums.count_sessions(plan) * LEAST_CACHES[model]
        assert sums.read_settings(model, plan).number("kv_cache_gib", 0) * GIB >= needed


@pytest.mark.parametrize("name", PLANS)
def test_a_cache_holds_the_longest_request(name):
    """Else vLLM refuses to start."""
    for model, token in (("qwen3", QWEN3_TOKEN), ("t3", T3_TOKEN)):
        if model not in PLANS[name].without:
            length = json.loads((sums.REPOSITORY / model / "1" / "model.json").read_text())["max_model_len"]
            assert sums.read_settings(model, PLANS[name]).number("kv_cache_gib", 0) * GIB >= length * token


def test_every_session_may_speak_at_once():
    for plan in PLANS.values():
        if "s3gen" not in plan.without:
            assert sums.read_settings("s3gen", plan).integer("max_utterances", 0) >= sums.count_sessions(plan)


def test_parameters_are_those_of_the_published_models():
    """By the cards of the models: 0.6 billion for Parakeet and Nemotron."""
    for encoder, decoder in ((NEMOTRON_ENCODER, NEMOTRON_DECODER), (PARAKEET_ENCODER, PARAKEET_DECODER)):
        assert encoder_parameters(encoder) + decoder.parameters == pytest.approx(0.62e9, rel=0.03)


def test_the_sum_for_s3gen_is_about_what_was_measured():
    """docs/measurements.md: 4 GB besides utterances and voices, with the settings without a plan."""
    plan = PLANS["H200"]
    one, more = (
        sums._s3gen(replace(plan, settings={"s3gen": {"max_utterances": count, "voices": "1"}}))
        for count in ("1", "11")
    )
    assert one.weights + one.caches + sums._WORKSPACES["s3gen"] == pytest.approx(4.0e9, rel=0.15)
    assert 0.115e9 <= (more.caches - one.caches) / 10 <= 0.2e9


def test_the_graphs_of_the_vocoder_are_counted_by_their_largest_batch():
    sizes = {name: sums.s3gen_sizes(sums.read_settings("s3gen", PLANS[name])) for name in ("L4", "H100")}
    small, large = (sums.vocoder_graphs(sizes[name].vocoder) for name in ("L4", "H100"))
    assert sizes["H100"].vocoder.waveform.batches()[0] == (8, 237)
    # Of its last level, 64 channels at 120 times the frames, a few signals are held at once.
    signal = 8 * 64 * 237 * 120 * 4
    assert 3 * signal < large < 20 * signal
    assert 0.4 * large < small < large
    need = sums._s3gen(PLANS["H100"])
    assert need.workspace == sums._WORKSPACES["s3gen"] + large


def test_the_graphs_of_the_pitch_predictor_are_counted():
    both = sums.s3gen_sizes(sums.read_settings("s3gen", PLANS["H100"])).vocoder
    fewer = replace(both, pitch=replace(both.pitch, rows=both.pitch.rows[:1]))
    graphs = len(both.pitch.batches()) - len(fewer.pitch.batches())
    assert graphs == 15
    assert sums.vocoder_graphs(both) - sums.vocoder_graphs(fewer) >= graphs * sums._PITCH_GRAPH > 0


@pytest.mark.parametrize("name", PLANS)
def test_every_session_has_a_place_in_the_recogniser(name):
    sessions = sums.read_settings("nemotron_streaming", PLANS[name]).integer("max_sessions", 0)
    assert sessions == sums.count_sessions(PLANS[name])

"""int8 layers for processors without VNNI, in vLLM's own frame."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from parley.llm.startup import has_vnni, prepare_environment

# In a process of its own: importing vLLM changes the interpreter (warnings, threads, logging).
SCRIPT = """
import json, sys
from pathlib import Path
from parley.llm import startup
startup.has_vnni = lambda: False
startup.prepare_environment(engine_in_process=True, threads=1, cache_dir=Path(sys.argv[1]))
import torch
from vllm.model_executor.kernels.linear import init_int8_linear_kernel
from vllm.platforms import current_platform
from parley.llm.vllm_int8 import Int8LinearWithoutVnni, register_int8
current_platform.import_kernels()
register_int8()
register_int8()
torch.manual_seed(1)
torch.set_default_dtype(torch.bfloat16)
INPUTS, OUTPUTS = 96, 160
weight = (32 * torch.randn(OUTPUTS, INPUTS, dtype=torch.float32)).round().clamp(-127, 127)
scale = 0.01 * torch.rand(OUTPUTS, 1, dtype=torch.float32) + 0.001
bias = torch.randn(OUTPUTS)
found = {"errors": []}
for channelwise in (True, False):
    scales = scale if channelwise else scale[:2]
    full = scale if channelwise else scale[:2].repeat_interleave(OUTPUTS // 2, dim=0)
    layer = torch.nn.Module()
    layer.logical_widths = [OUTPUTS // 2] * 2
    layer.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    layer.input_scale = layer.input_zero_point = layer.azp_adj = None
    kernel = init_int8_linear_kernel(channelwise, False, True, "test")
    found["kernel"] = type(kernel).__name__
    kernel.process_weights_after_loading(layer)
    for shape in ((1,), (4,), (5,), (40,), (2, 3), (0,)):
        for added in (None, bias):
            x = torch.randn(*shape, INPUTS)
            out = kernel.apply_weights(layer, x, added)
            exact = x.double() @ (weight.double() * full.double()).T + (0 if added is None else bias.double())
            assert out.shape == (*shape, OUTPUTS) and out.dtype == torch.bfloat16
            if out.numel():
                found["errors"].append(((out.double() - exact).norm() / exact.norm()).item())
asymmetric = init_int8_linear_kernel(True, False, False, "test")
found["asymmetric"] = type(asymmetric).__name__
layer.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
layer.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
asymmetric.process_weights_after_loading(layer)
x = torch.rand(5, INPUTS)
exact = x.double() @ (weight.double() * scale.double()).T
out = asymmetric.apply_weights(layer, x)
found["asymmetric_error"] = ((out.double() - exact).norm() / exact.norm()).item()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("cache"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_vllm_takes_the_layer_in_place_of_its_own(found):
    assert found["kernel"] == "Int8LinearWithoutVnni"


def test_the_layer_multiplies(found):
    assert len(found["errors"]) == 20
    assert max(found["errors"]) < 0.03


def test_other_schemes_are_left_to_vllm(found):
    assert found["asymmetric"] == "Int8LinearWithoutVnni"
    assert found["asymmetric_error"] < 0.03


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", True),
        ("flags : avx2 avx_vnni\n", True),
        ("flags : fpu avx2 avx512f\n", False),
        ("processor : 0\nFeatures : fp asimd\n", True),
        ("", True),
    ],
)
def test_the_processor_says_whether_it_has_the_instructions(tmp_path, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    assert has_vnni(tmp_path / "cpuinfo") == expected
    assert has_vnni(tmp_path / "missing")


@pytest.mark.parametrize(("vnni", "in_process"), [(True, True), (False, False)])
def test_vllm_keeps_its_layer_elsewhere(monkeypatch, tmp_path, vnni, in_process):
    monkeypatch.setattr("parley.llm.startup.has_vnni", lambda: vnni)
    environment = {}
    prepare_environment(engine_in_process=in_process, threads=1, cache_dir=tmp_path, environment=environment)
    assert "VLLM_DISABLED_KERNELS" not in environment

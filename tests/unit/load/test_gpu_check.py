"""What ``make gpu-check`` computes of what it measures."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from gpu_check import language
from gpu_check.findings import Findings, Settings, read_planned
from gpu_check.recognition import largest_difference

CPU = torch.device("cpu")


def test_frames_are_compared_by_the_largest_value():
    expected = np.array([[4.0, -8.0]], np.float32)
    assert largest_difference(expected, expected) == 0
    assert largest_difference(expected + 2, expected) == pytest.approx(0.25)
    assert largest_difference(expected * np.nan, expected) == float("inf")
    assert largest_difference(expected[:, :1], expected) == float("inf")


async def test_a_load_of_requests_gives_their_rate():
    async def ask(name, tokens):
        for token in range(tokens):
            yield [token]

    running = language._Running(None, None, ask, None, 100)
    findings = Findings("qwen3")
    await language._measure_level(Settings(CPU, small=True, ends_at=0.0), findings, running, 3, 8)
    figures = {figure.name: figure.value for figure in findings.figures}
    assert figures["3 requests: tokens in a second"] == pytest.approx(3 * figures["3 requests: … of each"])
    assert [check.passed for check in findings.checks] == [True, True]


@pytest.mark.parametrize(("gpu", "voices"), [("H200", "64"), ("H100", "48"), ("T4", None)])
def test_models_on_a_gpu_have_the_settings_of_its_plan(monkeypatch, gpu, voices):
    monkeypatch.setenv("PARLEY_GPU_CLASS", gpu)
    assert read_planned("s3gen", torch.device("cuda")).get("voices") == voices
    assert read_planned("s3gen", CPU) == {}

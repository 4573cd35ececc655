"""What ``make gpu-check`` computes of what it measures: shares of a roof, and calls."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from gpu_check import calls as gpu_calls
from gpu_check import language
from gpu_check.calls import EXCHANGE, FILL, STAGES, PlanMemory, count_calls, find_plan_memory, read_planned
from gpu_check.findings import Findings, Settings, summary, throughputs
from gpu_check.recognition import largest_difference

from parley.launcher.options import ROOT

CPU = torch.device("cpu")
H100 = PlanMemory("memory", 64)


class TestCalls:
    def test_a_stage_holds_what_its_throughput_is_worth(self):
        need = STAGES["s3gen"][1]
        assert need == pytest.approx(EXCHANGE.answer_s / EXCHANGE.length_s)
        found = count_calls({"s3gen": 100 * need}, H100)
        assert found.alone == {"s3gen": pytest.approx(100 * FILL)}
        assert found.together == pytest.approx(100 * FILL)

    def test_stages_share_the_time_of_the_gpu(self):
        found = count_calls({stage: 130 * need for stage, (_, need) in STAGES.items()}, H100)
        assert found.together == pytest.approx(130 * FILL / len(STAGES))
        assert found.held == 18

    def test_memory_may_hold_less(self):
        found = count_calls(dict.fromkeys(STAGES, 1000000.0), PlanMemory("memory", 8))
        assert found.held == 8
        assert found.lines()[-1] == "by all of that: 8"

    def test_what_was_not_measured_is_no_number(self):
        found = count_calls({"nemotron": 50.0, "t3": 900.0}, PlanMemory("no GPU, no memory plan"))
        assert found.held is None
        assert found.missing == ("parakeet", "qwen3", "s3gen")
        lines = found.lines()
        assert "qwen3: not measured" in lines
        assert lines[-1] == "by all of that: not known, for want of parakeet, qwen3, s3gen, memory"

    def test_a_stage_that_never_keeps_up_holds_none(self):
        found = count_calls({stage: 0.0 if stage == "t3" else 1e6 for stage in STAGES}, H100)
        assert (found.alone["t3"], found.together, found.held) == (0, 0, 0)

    def test_a_stage_that_the_plan_leaves_out_does_not_count(self):
        plan = PlanMemory("memory", 8, frozenset({"t3", "s3gen", "chatterbox"}))
        found = count_calls({"nemotron": 1e6, "parakeet": 1e6, "qwen3": 1e6}, plan)
        assert (found.missing, found.held) == ((), 8)

    def test_nothing_measured(self):
        found = count_calls({}, H100)
        assert (found.together, found.held) == (0, None)

    def test_the_exchange_is_that_of_the_load_profile(self):
        assert EXCHANGE.length_s == pytest.approx(1.4 + 0.6 + 8.3 / 2.5 + 0.75)
        assert EXCHANGE.user_speech + EXCHANGE.agent_speech < 1
        assert EXCHANGE.answer_tokens == pytest.approx((8.3 * 1.3 + 8) / 0.87 / EXCHANGE.length_s)


class TestMemory:
    def test_a_processor_has_no_plan(self):
        assert find_plan_memory(CPU).sessions is None

    @pytest.mark.parametrize(
        ("gib", "capability", "sessions", "without"),
        [(79.2, (9, 0), 64, ""), (14.6, (7, 5), 8, "s3gen"), (45.0, (7, 5), 8, ""), (45.0, (8, 9), 40, "")],
    )
    def test_a_gpu_has_the_sessions_of_its_plan(self, monkeypatch, gib, capability, sessions, without):
        cuda = SimpleNamespace(
            get_device_properties=lambda _: SimpleNamespace(name="GPU", total_memory=int(gib * 2**30)),
            get_device_capability=lambda _: capability,
        )
        monkeypatch.setattr(gpu_calls, "torch", SimpleNamespace(cuda=cuda))
        found = find_plan_memory(torch.device("cuda"))
        assert found.sessions == sessions
        assert ("s3gen" in found.without) is bool(without)
        assert f"{sessions} sessions" in found.line

    def test_why_there_is_no_plan(self, monkeypatch):
        cuda = SimpleNamespace(
            get_device_properties=lambda _: SimpleNamespace(name="Small", total_memory=2**33),
            get_device_capability=lambda _: (8, 6),
        )
        monkeypatch.setattr(gpu_calls, "torch", SimpleNamespace(cuda=cuda))
        assert "the GPU Small has 8.0 GiB" in find_plan_memory(torch.device("cuda")).line
        monkeypatch.setitem(sys.modules, "memory_plans", None)
        assert find_plan_memory(torch.device("cuda")).line.startswith(
            "no memory plan: import of memory_plans"
        )


def test_frames_are_compared_by_the_largest_value():
    expected = np.array([[4.0, -8.0]], np.float32)
    assert largest_difference(expected, expected) == 0
    assert largest_difference(expected + 2, expected) == pytest.approx(0.25)
    assert largest_difference(expected * np.nan, expected) == float("inf")
    assert largest_difference(expected[:, :1], expected) == float("inf")


class TestFindings:
    def test_the_best_load_that_keeps_up_counts(self):
        findings = Findings("t3")
        findings.keeps_up(300.0, enough=True)
        findings.keeps_up(900.0, enough=True)
        findings.keeps_up(1_200.0, enough=False)
        assert throughputs([findings, Findings("qwen3")]) == {"t3": 900.0}

    def test_what_failed_does_not_count(self):
        findings = Findings("t3", throughput=900.0)
        findings.check("number of tokens", passed=False)
        assert throughputs([findings]) == {}
        assert throughputs([Findings("t3", throughput=900.0, error="broken")]) == {}

    def test_the_file_has_all_of_it(self):
        findings = Findings("t3", throughput=900.0)
        findings.measure("one", 50.0, "ms")
        written = summary({"GPU": "none"}, [findings], count_calls({"t3": 900.0}, H100))
        assert written["sections"][0]["throughput"] == 900.0
        assert written["sections"][0]["figures"][0]["value"] == 50.0
        assert written["calls"]["by_memory"] == 64
        assert written["calls"]["held"] is None


@pytest.mark.parametrize(("least", "keeps_up"), [(1.0, True), (1e12, False)])
async def test_a_load_of_requests_gives_throughput(least, keeps_up):
    async def ask(name, tokens):
        for token in range(tokens):
            yield [token]

    running = language._Running(None, None, ask, None, 100, least_rate=least)
    settings = Settings(CPU, small=True, ends_at=0.0)
    findings = Findings("qwen3")
    await language._measure_level(settings, findings, running, 3, 8)
    figures = {figure.name: figure.value for figure in findings.figures}
    rate = figures["3 requests: tokens in a second"]
    assert findings.throughput == (rate if keeps_up else 0.0)
    assert findings.passed


_ROW = re.compile(r"^\| `(\w+)`[^|]*\| ([\d,]+) [^|]*\| ([\d.]+) [^|]*\| ([\d,]+) \|$", re.MULTILINE)


@pytest.mark.parametrize(("gpu", "voices"), [("H200", "64"), ("H100", "48"), ("T4", None)])
def test_models_on_a_gpu_have_the_settings_of_its_plan(monkeypatch, gpu, voices):
    monkeypatch.setenv("PARLEY_GPU_CLASS", gpu)
    assert read_planned("s3gen", torch.device("cuda")).get("voices") == voices
    assert read_planned("s3gen", CPU) == {}


def test_calls_in_the_docs_are_those_of_the_figures_there():
    text = (ROOT / "docs" / "measurements.md").read_text()
    rows = {name: [float(value.replace(",", "")) for value in values] for name, *values in _ROW.findall(text)}
    assert set(rows) == {"nemotron", "parakeet", "t3", "s3gen"}
    found = count_calls({name: rate for name, (rate, _, _) in rows.items()}, H100)
    for name, (_, need, held) in rows.items():
        assert need == pytest.approx(STAGES[name][1], abs=0.005)
        assert held == pytest.approx(found.alone[name], abs=0.5)
    assert f"in turns {found.together:.0f} calls" in " ".join(text.split())

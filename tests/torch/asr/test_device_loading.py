"""What is chosen for a GPU, with fakes in the places of what only a GPU has."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parley.asr import checkpoint
from parley.errors import ModelLoadingError
from parley.launcher.options import ROOT
from parley.models.parakeet_encoder import open_encoder
from parley.runtime.parameters import Parameters
from parley_torch.asr import loading, topk
from parley_torch.asr.loading import DeviceSettings
from parley_torch.models import recognizers
from parley_torch.runtime.cuda_graphs import Repetition

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


def parameters(**values):
    return Parameters("nemotron_streaming", values, environment={})


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is found, and whose graphs are counted."""
    made = []
    monkeypatch.setattr(recognizers, "choose_device", lambda kind, _: CUDA if kind == "gpu" else CPU)
    monkeypatch.setattr(recognizers, "choose_precision", lambda *_, **__: torch.bfloat16)
    monkeypatch.setattr(loading, "CudaCapture", lambda: made.append("graph") or "graph")
    return made


@pytest.mark.parametrize(
    ("values", "graphs"), [({}, True), ({"graphs": "true"}, True), ({"graphs": "false"}, False)]
)
def test_steps_on_a_gpu_are_graphs_unless_it_is_said(gpu, values, graphs):
    settings = recognizers.device_settings(parameters(device="gpu", **values), 0)
    capture = settings.capture()
    assert gpu == ["graph"] * graphs
    assert (capture == "graph") is graphs


def test_steps_on_a_processor_are_repeated(gpu):
    settings = recognizers.device_settings(parameters(device="cpu"), 0)
    assert isinstance(settings.capture(), Repetition)
    with pytest.raises(ModelLoadingError, match="device must be gpu"):
        recognizers.device_settings(parameters(device="cpu", graphs="true"), 0)


def test_an_encoder_is_tried_with_no_more_frames_than_it_takes():
    values = {"engine": "torch", "frame_buckets": "100,200", "row_buckets": "1", "max_run_frames": "200"}
    values["weights"] = str(ROOT / "models" / checkpoint.DEFAULT)
    service = open_encoder(Parameters("parakeet_encoder", values, environment={}), 0)
    features = np.zeros((1, 80, 150), np.float32)
    (result,) = service.serve([{"FEATURES": features, "LENGTH": np.array([[150]])}])
    assert result["ENCODED_LENGTH"].tolist() == [[19]]


@pytest.mark.parametrize(("device", "taken"), [(CUDA, [False]), (CPU, [])])
def test_networks_on_a_gpu_take_memory_only_while_no_engine_measures(monkeypatch, device, taken):
    found = []
    monkeypatch.setattr(recognizers, "loading_on_gpu", lambda *, alone: found.append(alone) or nullcontext())
    with recognizers.loading(DeviceSettings(device)):
        assert found == taken


def test_scores_on_a_gpu_go_to_the_fused_kernel(monkeypatch):
    asked = []
    kernel = SimpleNamespace(top_k=lambda *given: asked.append(given) or "best")
    monkeypatch.setitem(sys.modules, "parley_torch.asr.topk_triton", kernel)
    monkeypatch.setattr("parley_torch.asr.topk_triton", kernel, raising=False)
    monkeypatch.setattr(topk.importlib.util, "find_spec", lambda name: name == "triton")
    scores = SimpleNamespace(is_cuda=True)
    assert topk.top_k(scores, 3, None) == "best"
    assert asked == [(scores, 3, None)]

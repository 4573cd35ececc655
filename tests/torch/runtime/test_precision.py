"""In which number format networks on torch compute, by their device."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from parley.errors import ModelLoadingError
from parley.runtime.parameters import Parameters
from parley_torch.runtime.precision import PRECISIONS, choose_precision

TURING, AMPERE = (7, 5), (8, 0)


@pytest.fixture
def choose(monkeypatch):
    def choose(named, capability, *, allowed=tuple(PRECISIONS), otherwise="float16"):
        """``capability`` is that of the GPU; None: there is a CPU only."""
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        device = torch.device("cuda", 1) if capability else torch.device("cpu")
        parameters = Parameters("encoder", {"precision": named}, environment={})
        return choose_precision(parameters, device, allowed=allowed, otherwise=otherwise)

    return choose


@pytest.mark.parametrize(
    ("named", "capability", "expected"),
    [
        ("auto", AMPERE, torch.bfloat16),
        ("auto", (12, 0), torch.bfloat16),
        ("auto", TURING, torch.float16),
        ("auto", None, torch.float32),
        ("float32", TURING, torch.float32),
        ("float16", AMPERE, torch.float16),
        ("bfloat16", AMPERE, torch.bfloat16),
        ("bfloat16", None, torch.bfloat16),
        ("", AMPERE, torch.float32),
    ],
)
def test_the_precision_is_one_that_the_device_has(choose, named, capability, expected):
    assert choose(named, capability) is expected


def test_a_network_says_what_it_takes_without_bfloat16(choose):
    assert choose("auto", TURING, otherwise="float32") is torch.float32


def test_a_precision_that_the_gpu_would_emulate_is_refused(choose):
    with pytest.raises(ModelLoadingError, match="GPU does not have; auto would take float16"):
        choose("bfloat16", TURING)


def test_only_what_the_network_can_is_allowed(choose):
    with pytest.raises(ModelLoadingError, match="must be one of float32, auto"):
        choose("float16", AMPERE, allowed=("float32",))

"""The same answers on tensors as on arrays; the kernel runs in Triton's interpreter where there is no GPU."""

import importlib.util
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from parley.asr.decoding.topk import top_k  # noqa: E402
from parley.asr.decoding.topk_torch import plain_top_k  # noqa: E402
from parley.asr.decoding.topk_torch import top_k as tensor_top_k  # noqa: E402

RNG = np.random.default_rng(0)
SIZES = pytest.mark.parametrize(("rows", "classes", "k"), [(1, 129, 1), (7, 1025, 4), (3, 40, 40), (0, 5, 2)])
BOOSTED = pytest.mark.parametrize("boosted", [False, True])


def case(rows, classes, boosted):
    scores = 10 * RNG.standard_normal((rows, classes)).astype(np.float32)
    return scores, RNG.standard_normal((rows, classes)).astype(np.float32) if boosted else None


def check(found, ids, scores, k, bonus):
    expected, expected_ids = top_k(scores, k, bonus)
    assert np.array_equal(ids.cpu().numpy(), expected_ids)
    assert np.abs(found.cpu().numpy() - expected).max(initial=0.0) < 1e-5


@SIZES
@BOOSTED
@pytest.mark.parametrize("function", [plain_top_k, tensor_top_k])
def test_torch_finds_what_numpy_finds(rows, classes, k, boosted, function):
    scores, bonus = case(rows, classes, boosted)
    found, ids = function(torch.from_numpy(scores), k, None if bonus is None else torch.from_numpy(bonus))
    check(found, ids, scores, k, bonus)


@pytest.fixture
def kernel():
    """The fused kernel, and the device that it runs on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs the package triton")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    from parley.asr.decoding import topk_triton

    return topk_triton.top_k, "cuda" if torch.cuda.is_available() else "cpu"


@SIZES
@BOOSTED
def test_the_kernel_finds_what_numpy_finds(kernel, rows, classes, k, boosted):
    run, device = kernel
    scores, bonus = case(rows, classes, boosted)
    found, ids = run(
        torch.from_numpy(scores).to(device),
        k,
        None if bonus is None else torch.from_numpy(bonus).to(device),
    )
    check(found, ids, scores, k, bonus)


def test_the_kernel_takes_the_first_of_equal_classes_and_rows_that_are_not_contiguous(kernel):
    run, device = kernel
    scores = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]], device=device)
    assert run(scores, 3)[1].tolist() == [[1, 2, 0], [0, 1, 2]]
    wide = torch.arange(24.0, device=device).reshape(3, 8)[:, ::2]
    check(*run(wide, 2), wide.cpu().numpy(), 2, None)


def test_the_kernel_takes_half_precision(kernel):
    run, device = kernel
    scores = torch.from_numpy(case(4, 129, boosted=False)[0]).to(device).half()
    check(*run(scores, 4), scores.float().cpu().numpy(), 4, None)

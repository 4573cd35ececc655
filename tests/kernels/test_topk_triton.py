"""The fused top-k kernel finds what numpy finds."""

import numpy as np
import pytest
import torch

from parley.asr.decoding.topk import top_k
from parley_torch.asr.topk_triton import top_k as kernel_top_k

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RNG = np.random.default_rng(0)


def check(found, ids, scores, k, bonus):
    expected, expected_ids = top_k(scores, k, bonus)
    assert np.array_equal(ids.cpu().numpy(), expected_ids)
    assert np.abs(found.cpu().numpy() - expected).max(initial=0.0) < 1e-5


def on_device(values):
    return None if values is None else torch.from_numpy(values).to(DEVICE)


@pytest.mark.parametrize(("rows", "classes", "k"), [(1, 129, 1), (7, 1025, 4), (3, 40, 40), (0, 5, 2)])
@pytest.mark.parametrize("boosted", [False, True])
def test_topk_equals_numpy(rows, classes, k, boosted):
    scores = 10 * RNG.standard_normal((rows, classes)).astype(np.float32)
    bonus = RNG.standard_normal((rows, classes)).astype(np.float32) if boosted else None
    check(*kernel_top_k(on_device(scores), k, on_device(bonus)), scores, k, bonus)


def test_topk_of_strided_rows_takes_the_first_of_equal_classes():
    scores = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]], device=DEVICE)
    assert kernel_top_k(scores, 3)[1].tolist() == [[1, 2, 0], [0, 1, 2]]
    wide = torch.arange(24.0, device=DEVICE).reshape(3, 8)[:, ::2]
    check(*kernel_top_k(wide, 2), wide.cpu().numpy(), 2, None)


def test_topk_accepts_half_precision():
    scores = on_device(10 * RNG.standard_normal((4, 129)).astype(np.float32)).half()
    check(*kernel_top_k(scores, 4), scores.float().cpu().numpy(), 4, None)


def test_more_classes_than_a_program_can_hold_are_refused():
    with pytest.raises(ValueError, match="65537 classes; at most 65536"):
        kernel_top_k(torch.zeros(1, 65_537, device=DEVICE), 1)

"""The same answers on tensors as on arrays; the kernel is tested in tests/kernels."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from parley.asr.decoding.topk import top_k  # noqa: E402
from parley_torch.asr.topk import plain_top_k  # noqa: E402
from parley_torch.asr.topk import top_k as tensor_top_k  # noqa: E402

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

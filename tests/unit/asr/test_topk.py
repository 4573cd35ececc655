import numpy as np
import pytest

from parley.asr.decoding.topk import logsumexp, top_k

RNG = np.random.default_rng(0)


def whole(scores, bonus):
    """Log probabilities of all classes, with their bonus."""
    scores = scores.astype(np.float64)
    return scores - np.logaddexp.reduce(scores, axis=1)[:, None] + bonus


@pytest.mark.parametrize("k", [1, 2, 5, 40])
@pytest.mark.parametrize("boosted", [False, True])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_best_of_a_log_softmax(k, boosted, scale):
    scores = scale * RNG.standard_normal((7, 40)).astype(np.float32)
    bonus = RNG.standard_normal((7, 40)).astype(np.float32) if boosted else None
    found, ids = top_k(scores, k, bonus)
    everything = whole(scores, 0 if bonus is None else bonus)
    best = np.argsort(-everything, axis=1)[:, :k]
    assert np.array_equal(ids, best)
    assert np.abs(found - np.take_along_axis(everything, best, axis=1)).max() < 1e-5


def test_first_of_equal_classes_is_best():
    scores = np.array([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]], np.float32)
    assert top_k(scores, 1)[1].tolist() == [[1], [0]]
    assert top_k(scores, 4)[1].tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]


def test_huge_scores_do_not_overflow():
    scores = np.array([[3e4, -3e4, 3e4]], np.float32)
    assert logsumexp(scores)[0, 0] == pytest.approx(3e4 + np.log(2))
    assert top_k(scores, 2)[0] == pytest.approx(np.full((1, 2), -np.log(2)))


def test_no_rows_have_no_best():
    found, ids = top_k(np.zeros((0, 5), np.float32), 2)
    assert found.shape == ids.shape == (0, 2)

"""The transducer losses against the sum over all paths, one by one."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from tiny.transducer_loss import rnnt_loss, tdt_loss  # noqa: E402

DURATIONS = (0, 1, 2)
VOCABULARY = 3
BLANK = VOCABULARY
SIGMA = 0.05


def tdt_likelihood(logits: Any, targets: list[int], t: int = 0, u: int = 0) -> float:
    """Probability of writing ``targets[u:]`` from frame ``t`` on, for logits ``[T, U + 1, V + 1 + D]``."""
    if t == len(logits):
        return float(u == len(targets))
    tokens = (torch.log_softmax(logits[t, u, : BLANK + 1], -1) - SIGMA).exp().tolist()
    durations = torch.softmax(logits[t, u, BLANK + 1 :], -1).tolist()
    total = 0.0
    for duration, weight in zip(DURATIONS, durations, strict=True):
        to = t + duration
        if duration > 0 and to <= len(logits):
            total += tokens[BLANK] * weight * tdt_likelihood(logits, targets, to, u)
        if u < len(targets) and to < len(logits):
            total += tokens[targets[u]] * weight * tdt_likelihood(logits, targets, to, u + 1)
    return total


def rnnt_likelihood(logits: Any, targets: list[int], t: int = 0, u: int = 0) -> float:
    """The same without durations, for logits ``[T, U + 1, V + 1]``."""
    if t == len(logits):
        return float(u == len(targets))
    tokens = torch.softmax(logits[t, u], -1).tolist()
    total = tokens[BLANK] * rnnt_likelihood(logits, targets, t + 1, u)
    if u < len(targets):
        total += tokens[targets[u]] * rnnt_likelihood(logits, targets, t, u + 1)
    return total


def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, BLANK + 1 + len(DURATIONS), generator=generator)
    targets = torch.randint(0, VOCABULARY, (3, 3), generator=generator)
    return logits, targets, torch.tensor([5, 4, 3]), torch.tensor([3, 1, 0])


def test_rnnt_loss_is_the_sum_over_all_paths():
    logits, targets, frames, tokens = batch()
    logits = logits[..., : BLANK + 1]
    losses = rnnt_loss(logits, targets, frames, tokens)
    for row, loss in enumerate(losses.tolist()):
        said = targets[row, : tokens[row]].tolist()
        expected = -math.log(rnnt_likelihood(logits[row, : frames[row], : tokens[row] + 1], said))
        assert loss == pytest.approx(expected, rel=1e-5)


def test_fast_emit_urges_tokens_and_changes_no_loss():
    logits, targets, frames, tokens = batch()
    losses, slopes = [], []
    for fast_emit in (0.0, 0.5):
        values = logits[..., : BLANK + 1].clone().requires_grad_()
        loss = rnnt_loss(values, targets, frames, tokens, fast_emit=fast_emit)
        loss.sum().backward()
        losses.append(loss.tolist())
        slopes.append(values.grad[0, 0, 0, targets[0, 0]].item())
    assert losses[0] == losses[1]
    assert slopes[1] < slopes[0] < 0


def test_tdt_loss_is_the_sum_over_all_paths():
    logits, targets, frames, tokens = batch()
    losses = tdt_loss(logits, targets, frames, tokens, durations=DURATIONS, sigma=SIGMA)
    for row, loss in enumerate(losses.tolist()):
        said = targets[row, : tokens[row]].tolist()
        expected = -math.log(tdt_likelihood(logits[row, : frames[row], : tokens[row] + 1], said))
        assert loss == pytest.approx(expected, rel=1e-5)


def tdt_total(logits: Any) -> Any:
    return tdt_loss(logits, *batch()[1:], durations=DURATIONS, sigma=SIGMA).sum()


def rnnt_total(logits: Any) -> Any:
    return rnnt_loss(logits, *batch()[1:]).sum()


@pytest.mark.parametrize("total", [tdt_total, rnnt_total])
def test_gradient_is_the_slope_of_the_loss(total):
    logits = batch()[0].requires_grad_()
    total(logits).backward()
    step = 1e-2
    for at in ((0, 0, 0, 1), (0, 2, 1, BLANK), (1, 1, 1, BLANK + 2), (2, 2, 0, 0)):
        with torch.no_grad():
            nudge = torch.zeros_like(logits)
            nudge[at] = step
            slope = (total(logits + nudge) - total(logits - nudge)) / (2 * step)
        assert logits.grad[at].item() == pytest.approx(slope.item(), abs=1e-3)


def test_padding_does_not_count():
    logits, targets, frames, tokens = batch()
    changed = logits.clone()
    changed[1, frames[1] :] += 1
    changed[1, :, tokens[1] + 1 :] += 1
    losses = [tdt_loss(x, targets, frames, tokens, durations=DURATIONS) for x in (logits, changed)]
    assert losses[0].tolist() == losses[1].tolist()


def test_impossible_row_has_no_gradient():
    logits, targets, _, tokens = batch()
    logits.requires_grad_()
    losses = tdt_loss(logits, targets, torch.tensor([0, 1, 1]), tokens, durations=(1, 2))
    assert losses[0] > 1e20
    losses[0].backward()
    assert not logits.grad.any()

"""Which tokens a request has generated, and what that changes in its scores."""

import pytest
import torch

from parley_torch.tts.t3.request import START_OF_SPEECH, TokenSampling
from parley_torch.tts.t3.sampling import SamplingRow, gumbel_noise, mark_tokens, score_tokens

VOCABULARY = START_OF_SPEECH + 2
GREEDY = TokenSampling(0.0, 1.0, 0, 0.0, 2.0)


def test_tokens_behind_the_count_of_a_row_are_not_marked():
    ids = torch.tensor([[1, 2, 3], [3, 0, 0]], dtype=torch.int32)
    marked = mark_tokens(ids, torch.tensor([2, 1]), 5)
    assert marked.nonzero().tolist() == [[0, 1], [0, 2], [1, 3]]


def test_a_row_without_tokens_has_no_marks():
    assert not mark_tokens(torch.zeros(2, 0, dtype=torch.long), torch.tensor([0, 0]), 5).any()


@pytest.mark.parametrize(("turbo", "generated"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_start_token_is_penalized_with_turbo_only_at_the_start(turbo, generated):
    scores = torch.ones(1, VOCABULARY)
    seen = mark_tokens(torch.tensor([[7]]), torch.tensor([generated]), VOCABULARY)
    scored = score_tokens(scores, [SamplingRow(GREEDY, generated)], seen, turbo=turbo)
    assert (scored[0, START_OF_SPEECH] == 0.5) == (not turbo or not generated)
    assert (scored[0, 7] == 0.5) == bool(generated)


def test_the_noise_of_a_token_depends_on_the_seed_and_its_number_alone():
    row = SamplingRow(TokenSampling(0.5, 1.0, 0, 0.0, 1.0, seed=3), 4)
    scores = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(2, VOCABULARY, dtype=torch.bool)
    other = SamplingRow(TokenSampling(0.5, 1.0, 0, 0.0, 1.0, seed=4), 9)
    scored = score_tokens(scores.clone(), [other, row], seen, turbo=False)
    expected = scores[1] / 0.5 + torch.from_numpy(gumbel_noise(3, 4, VOCABULARY))
    torch.testing.assert_close(scored[1], expected)

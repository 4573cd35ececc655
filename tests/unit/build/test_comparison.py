"""When an export is near enough to its original."""

import numpy as np
import pytest

from comparison import ExportError, check, largest_difference, relative_difference, token_difference


def test_relative_difference_is_of_root_mean_squares():
    expected = np.array([[3.0, 4.0]], np.float32)
    assert relative_difference(expected, expected) == 0.0
    assert relative_difference(np.add(expected, [0.3, 0.4]), expected) == pytest.approx(0.1)
    assert largest_difference(np.add(expected, [0.3, -0.4]), expected) == pytest.approx(0.4)


@pytest.mark.parametrize("measure", [relative_difference, largest_difference])
def test_difference_of_other_shapes_is_not_a_number(measure):
    assert np.isnan(measure(np.zeros((2, 3)), np.zeros((2, 4))))


def test_token_difference_counts_replaced_removed_and_added_tokens():
    expected = [[1, 2, 3, 4], [5, 6], []]
    assert token_difference(expected, expected) == 0.0
    assert token_difference([[1, 9, 3], [5, 6, 7], []], expected) == pytest.approx(3 / 6)
    assert token_difference([[]], [[]]) == 0.0


def test_export_within_its_limits_is_reported(capsys):
    check("mine", "theirs", {"encoder": 0.001, "tokens": 0.0}, {"encoder": 0.001, "tokens": 0.0})
    assert capsys.readouterr().err == "mine: differences from theirs: encoder 1.0e-03, tokens 0.0e+00\n"


@pytest.mark.parametrize("value", [0.3, float("nan")])
def test_export_beyond_a_limit_is_refused_by_its_measure(value):
    with pytest.raises(ExportError, match=r"mine is not written.* theirs: tokens differs by .* 1\.0e-01"):
        check("mine", "theirs", {"encoder": 0.0, "tokens": value}, {"encoder": 1.0, "tokens": 0.1})

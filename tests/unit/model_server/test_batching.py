import numpy as np
import pytest

from parley.errors import InferenceError, InvalidInputError, ModelLoadingError
from parley.runtime.batching import (
    RowsNotFiniteError,
    check_rows,
    column,
    parse_sizes,
    round_up,
    run_together,
    split_rows,
    stack_rows,
)


def test_rows_are_stacked_with_zeros_and_split_again():
    first, second = np.ones((1, 2, 3), np.float32), np.full((2, 4, 1), 2, np.float32)
    stacked = stack_rows([first, second])
    assert stacked.shape == (3, 4, 3)
    assert stacked.dtype == np.float32
    assert stacked.sum() == first.sum() + second.sum()
    one, two = split_rows(stacked, [1, 2])
    assert np.array_equal(one[:, :2, :3], first)
    assert np.array_equal(two[:, :4, :1], second)


def test_a_list_of_sizes_rises_and_rounds_up():
    sizes = parse_sizes("192,256", "frames")
    assert [round_up(n, sizes) for n in (1, 192, 193, 300)] == [192, 192, 256, 300]
    assert parse_sizes("", "rows") == ()
    for text in ("2,1", "0,1", "x", "1,1"):
        with pytest.raises(ModelLoadingError, match="rows"):
            parse_sizes(text, "rows")
    assert parse_sizes("1,1,2", "past", repeated=True) == (1, 1, 2)
    for text in ("2,1,1", "0,0"):
        with pytest.raises(ModelLoadingError, match="past"):
            parse_sizes(text, "past", repeated=True)


def test_a_column_is_one_value_per_row():
    assert column(np.array([[3], [4]], np.int32), "COUNT").tolist() == [3, 4]
    for wrong in (np.zeros(2), np.zeros((2, 2)), np.zeros((1, 1, 1))):
        with pytest.raises(InvalidInputError, match="COUNT"):
            column(wrong, "COUNT")


def run_numbers(requests, *, poison=None):
    """Requests of one number each; ``poison`` fails every run that it is part of."""
    runs = []

    def check(request):
        if request["X"] < 0:
            raise InvalidInputError("negative")

    def run(batch):
        runs.append([request["X"] for request in batch])
        if poison in runs[-1]:
            raise InferenceError("poisoned")
        return [{"Y": request["X"] * 2} for request in batch]

    results = run_together([{"X": number} for number in requests], check, run)
    return [result if isinstance(result, Exception) else result["Y"] for result in results], runs


class Rows:
    """A network of rows in which numbers above 9 become NaN; ``mixes``: one of them spoils all rows."""

    def __init__(self, *, mixes=False):
        self.mixes = mixes
        self.runs = []

    def run(self, requests):
        rows = np.concatenate([request["X"] for request in requests])
        self.runs.append(rows.tolist())
        finite = rows <= 9
        if self.mixes and not finite.all():
            finite[:] = False
        check_rows(finite, "rows are")
        return [{"Y": request["X"] * 2} for request in requests]

    def serve(self, *requests):
        found = run_together([{"X": np.array(own)} for own in requests], lambda _: None, self.run)
        return [str(one) if isinstance(one, InferenceError) else one["Y"].tolist() for one in found]


def test_requests_with_infinite_rows_fail_and_the_others_run_again():
    network = Rows()
    assert network.serve([1], [2, 10, 3], [4], [5, 6], [11]) == [
        [2],
        "rows are not finite",
        [8],
        [10, 12],
        "rows are not finite",
    ]
    assert network.runs == [[1, 2, 10, 3, 4, 5, 6, 11], [1, 4, 5, 6]]


def test_batch_with_a_bad_row_is_run_one_by_one():
    network = Rows(mixes=True)
    assert network.serve([1], [10], [2]) == [[2], "rows are not finite", [4]]
    assert network.runs == [[1, 10, 2], [1], [10], [2]]
    alone = Rows(mixes=True)
    assert alone.serve([10]) == ["rows are not finite"]
    assert len(alone.runs) == 1


def test_padding_that_is_not_finite_is_no_request_s_fault():
    runs = []

    def run(requests):
        runs.append(len(requests))
        if len(requests) > 1:
            raise RowsNotFiniteError("rows are", [7])
        return [{"Y": request["X"]} for request in requests]

    found = run_together([{"X": np.array([number])} for number in (1, 2)], lambda _: None, run)
    assert [one["Y"].tolist() for one in found] == [[1], [2]]
    assert runs == [2, 1, 1]


def test_lines_are_of_rows():
    finite = np.array([True, False, True, True, False])
    with pytest.raises(RowsNotFiniteError) as caught:
        check_rows(finite, "scores are", rows=np.array([4, 4, 0, 7, 9]))
    assert (caught.value.rows, str(caught.value), caught.value.code) == (
        (4, 9),
        "scores are not finite",
        "inference_failed",
    )
    check_rows(~finite | True, "scores are")
    with pytest.raises(RowsNotFiniteError):
        check_rows(finite & False, "scores are", independent=True)
    with pytest.raises(InferenceError) as caught:
        check_rows(finite & False, "scores are")
    assert not isinstance(caught.value, RowsNotFiniteError)


@pytest.mark.parametrize(
    ("requests", "poison", "results", "runs"),
    [
        ([1, 2, 3], None, [2, 4, 6], [[1, 2, 3]]),
        ([1, -2, 3], None, [2, InvalidInputError, 6], [[1, 3]]),
        ([-1, -2], None, [InvalidInputError, InvalidInputError], []),
        ([1, 2, 3], 2, [2, InferenceError, 6], [[1, 2, 3], [1], [2], [3]]),
        ([2], 2, [InferenceError], [[2]]),
    ],
    ids=[
        "all good",
        "one refused",
        "all refused",
        "a failed run is repeated one by one",
        "a failed one is not",
    ],
)
def test_good_requests_share_one_run_in_order(requests, poison, results, runs):
    found, made = run_numbers(requests, poison=poison)
    assert [type(one) if isinstance(one, Exception) else one for one in found] == results
    assert made == runs

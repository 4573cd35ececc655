import pytest

from parley.asr.decoding.words import Retractions, StablePrefix, count_retractions


def pushed(partials, agreement=2):
    prefix = StablePrefix(agreement)
    return [prefix.push(partial.split()) for partial in partials]


def test_words_are_stable_when_partials_agree_on_them_and_go_on():
    partials = ["what", "what is the", "what is the time", "what is a time", "what is a time in"]
    assert pushed(partials) == [0, 1, 3, 2, 4]


def test_more_partials_must_agree_where_more_are_asked_for():
    partials = ["a b c d", "a b c d", "a b x d", "a b x d", "a b x d"]
    assert pushed(partials, 3) == [0, 0, 2, 2, 3]
    assert pushed(partials, 1) == [3, 3, 3, 3, 3]


def test_all_readings_must_agree():
    prefix = StablePrefix()
    prefix.push("a b c d".split())
    assert prefix.push("a b c d e".split(), ["a b c d e".split(), "a x".split()]) == 1


def test_a_partial_without_words_has_no_stable_ones():
    assert pushed(["a b", "", "a b", ""]) == [0, 0, 0, 0]


def test_a_copy_goes_its_own_way():
    prefix = StablePrefix()
    prefix.push("a b c".split())
    twin = prefix.fork()
    assert twin.push("a x".split()) == 1
    assert prefix.push("a b c".split()) == 2


@pytest.mark.parametrize(
    ("texts", "shown", "taken_back"),
    [
        ([], 0, 0),
        (["a", "a b", "a b c"], 3, 0),
        (["a", "x", "x y"], 3, 1),
        (["a b c", "a x c", "a b c"], 7, 4),
        (["a b", ""], 2, 2),
    ],
)
def test_words_taken_back_are_counted(texts, shown, taken_back):
    found = count_retractions([text.split() for text in texts])
    assert (found.shown, found.taken_back) == (shown, taken_back)


def test_retractions_add_up_over_utterances():
    total = Retractions(10, 1) + Retractions(30, 0)
    assert total.share == 0.025
    assert Retractions(0, 0).share == 0.0

import pytest

from parley_testing.matching import counted_words, lacking, mentions, plain_words


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("It's at 7:30 p.m.", "it\u2019s at seven thirty pm"),
        ("In 1969.", "in nineteen sixty nine"),
        ("120 people", "one hundred and twenty people"),
        ("5,280 feet", "five thousand two hundred eighty feet"),
        ("2,300,000", "two million three hundred thousand"),
        ("1001 nights", "a thousand and one nights"),
        ("555-1212", "five five five, one two one two"),
        ("7:05", "seven oh five"),
        ("7:00", "seven o'clock"),
        ("May 14th", "may fourteenth"),
        ("the 21st", "the twenty-first"),
        ("100 °C", "a hundred degrees celsius"),
        ("$5 & 20%", "five dollars and twenty percent"),
        ("To-morrow, good-bye!", "tomorrow goodbye"),
        ("My favourite colour", "my favorite color"),
        ("well-known", "well known"),
    ],
)
def test_two_ways_to_write_the_same(written, spoken):
    assert plain_words(written) == plain_words(spoken)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("15", "50"),
        ("fourteen", "forty"),
        ("3.14", "314"),
        ("one hundred", "a hundred and one"),
        ("10 and 5", "105"),
    ],
)
def test_two_that_are_not_the_same(one, other):
    assert plain_words(one) != plain_words(other)


def test_numbers_that_are_listed_stay_apart_unless_they_are_figures():
    assert plain_words("between 5 and 10") == ["between", "5", "and", "10"]
    assert plain_words("10, 20, 30") == ["10", "20", "30"]
    assert plain_words("4, 1, 2") == ["412"]


def test_a_phrase_is_found_word_by_word():
    assert mentions("The capital is Paris.", "paris")
    assert mentions("It is by Leonardo da Vinci!", "da vinci")
    assert not mentions("It is in Parisian style.", "paris")
    assert mentions("Sunlight is scattered by air.", "scatter*")
    assert not mentions("Sunlight.", "scatter*")
    assert not mentions("da, said Vinci Leonardo", "vinci da")
    assert mentions("There are seven of them.", "7")


def test_any_wording_of_each_thing_will_do():
    assert lacking((("7", "week*"), ("day*",)), "Seven days.") == []
    assert lacking((("8", "nine"), ("day*",)), "Seven days.") == ["8 | nine"]


def test_counted_words_of_a_sentence_have_figures_and_no_marks():
    assert counted_words("What is [um] the time?") == ["what", "is", "the", "time"]
    assert counted_words("Call 555-1213.") == ["call", *"5551213"]
    assert counted_words("at ten in 1969") == ["at", "10", "in", "1", "9", "6", "9"]

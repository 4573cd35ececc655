import pytest
from simulate.cues import Cue, parse_cue
from simulate.errors import ScenarioError
from simulate.sentence import Filler, InnerSound, Pause, parse_sentence
from simulate.sounds import SOUNDS


def test_words_and_what_is_between_them():
    sentence = parse_sentence("set [700] a [um][300] timer [cough] now", SOUNDS)
    assert sentence.text == "set a timer now"
    assert sentence.inserts == (
        (1, Pause(700)),
        (2, Filler("um")),
        (2, Pause(300)),
        (3, InnerSound("cough")),
    )
    assert sentence.pauses == (700, 300)


def test_a_filler_may_come_first():
    assert parse_sentence("[um] [400] hello", SOUNDS).inserts == ((0, Filler("um")), (0, Pause(400)))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "no words"),
        ("[um]", "no words"),
        ("[500] hello", "begins with a pause"),
        ("hello [500]", "ends with a pause"),
        ("hello [0] you", "1 to 10000"),
        ("hello [99999] you", "1 to 10000"),
        ("hello [wibble] you", "neither milliseconds"),
        ("hello [500 you", "not closed"),
    ],
)
def test_what_is_no_sentence_is_refused(written, why):
    with pytest.raises(ScenarioError, match=why):
        parse_sentence(written, SOUNDS)


def test_cues():
    assert parse_cue("agent+1500") == Cue("agent", 1500)
    assert parse_cue("idle+0") == Cue("idle", 0)
    for wrong in ("agent", "agent-5", "later+5", "agent+", "agent+1.5", ""):
        with pytest.raises(ScenarioError, match="is not"):
            parse_cue(wrong)

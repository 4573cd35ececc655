import pytest

from parley.agent.memory import ToolRound, remember
from parley.agent.playout import HeardSpeech


@pytest.mark.parametrize(
    ("text", "heard", "remembered"),
    [
        ("Hello there! \U0001f642", "Hello there!", "Hello there! \U0001f642"),
        ("One.  Two.", "One. Two.", "One.  Two."),
        ("One. Two.", "One.", "One…"),
        ("\U0001f642", "", None),
        ("One.", "", None),
    ],
)
def test_what_is_never_spoken_is_not_missing(text, heard, remembered):
    messages = remember([ToolRound(text=text)], HeardSpeech(0, ((0, heard),) if heard else ()))
    assert [message.content for message in messages] == ([remembered] if remembered else [])

import numpy as np
import pytest
from simulate.loudspeaker import Loudspeaker

from parley_client.events import AgentAudio

RATE = 16_000


def piece(response: str, offset_ms: int, length_ms: int, text: str = "") -> AgentAudio:
    return AgentAudio(1, response, offset_ms, RATE, np.ones(length_ms * 16, np.int16), text)


def test_it_keeps_an_account_of_what_came_and_what_was_heard():
    speaker = Loudspeaker()
    speaker.push(piece("r1", 0, 100, "once"), 1.0)
    speaker.push(piece("r1", 100, 100, "upon a"), 1.0)
    speaker.advance(1.15)
    account = speaker.ledger["r1"]
    assert [entry.text for entry in account.entries] == ["once", "upon a"]
    assert account.heard_ms == pytest.approx(150)
    assert speaker.queued_ms(1.15) == pytest.approx(50)
    assert speaker.playing(1.15) == "r1"
    assert speaker.playing(1.3) is None
    assert speaker.played_ms("r1") == pytest.approx(200)
    assert speaker.played_ms("r2") == 0


def test_it_halts_and_goes_on_where_it_was():
    heard = []
    speaker = Loudspeaker(heard.append)
    speaker.push(piece("r1", 0, 200), 1.0)
    speaker.pause("r1", 1.1)
    assert speaker.halted
    speaker.advance(2.0)
    assert speaker.played_ms("r1") == pytest.approx(100)
    assert speaker.queued_ms(2.0) == pytest.approx(100)
    speaker.push(piece("r1", 200, 100), 2.0)
    speaker.resume("r1", 2.5)
    assert not speaker.halted
    speaker.advance(2.6)
    assert speaker.played_ms("r1") == pytest.approx(200)
    speaker.advance(3.0)
    assert speaker.played_ms("r1") == pytest.approx(300)
    assert sum(len(stretch.samples) for stretch in heard) == 300 * 16
    assert next(stretch.at_s for stretch in heard if stretch.at_s > 1.1) == pytest.approx(2.5)


def test_an_interruption_drops_what_is_queued_and_what_comes():
    speaker = Loudspeaker()
    speaker.push(piece("r1", 0, 500, "once"), 1.0)
    speaker.pause("r1", 1.1)
    speaker.interrupt("r1", 1.4)
    speaker.push(piece("r1", 500, 100, "upon"), 1.41)
    speaker.push(piece("r2", 0, 100, "okay"), 1.5)
    speaker.advance(2.0)
    assert speaker.played_ms("r1") == pytest.approx(100)
    assert speaker.played_ms("r2") == pytest.approx(100)
    assert [entry.text for entry in speaker.late] == ["upon"]
    assert [entry.text for entry in speaker.ledger["r1"].entries] == ["once"]

"""The telephone line of callers, and how scenarios are run."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from fake_line import FakeLine
from test_sim_caller import FakeStudio

from parley_testing.caller import Caller as Performer
from parley_testing.line import Line
from parley_testing.modes import as_speech, as_text
from parley_testing.results import wilson
from parley_testing.scenario_file import read_file

RATE = 16_000
CHUNK = 512


def sent(line: Line, samples: np.ndarray) -> np.ndarray:
    return np.concatenate([line.send(samples[at : at + CHUNK]) for at in range(0, len(samples), CHUNK)])


def tone(hertz: float) -> np.ndarray:
    time = np.arange(40 * CHUNK) / RATE
    return np.asarray(8_000 * np.sin(2 * np.pi * hertz * time), np.int16)


def level(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(samples[RATE // 10 :].astype(float) ** 2)))


def test_line_without_faults_changes_nothing():
    assert np.array_equal(sent(Line(), tone(440)), tone(440))


def test_telephone_passes_voices_and_nothing_above_4_khz():
    heard = sent(Line(telephone=True), tone(1_000))
    assert len(heard) == len(tone(1_000))
    assert level(heard) == pytest.approx(level(tone(1_000)), rel=0.05)
    assert level(sent(Line(telephone=True), tone(6_000))) < 0.01 * level(tone(6_000))


def test_lost_packets_are_silent_and_as_many_as_asked_for():
    samples = np.full(4_000 * CHUNK, 1_000, np.int16)
    heard = sent(Line(loss=0.1, seed=1), samples)
    packets = heard.reshape(-1, RATE // 50)
    assert set(map(tuple, packets[:, [0, -1]].tolist())) == {(0, 0), (1_000, 1_000)}
    assert np.mean(packets[:, 0] == 0) == pytest.approx(0.1, abs=0.02)


SCENARIO = """
title = "A call"
[caller]
voice = "man-1"
loss = 0.1
[[exchange]]
say = "set a timer [700] for ten minutes"
expect = { heard = ["timer"], answer = ["10"] }
[[exchange]]
backchannel = "mhm"
at = "agent+500"
[[exchange]]
text = "and Another"
at = "agent+500"
[[exchange]]
dtmf = "12#"
"""


def scenario(tmp_path):
    path = tmp_path / "call.toml"
    path.write_text(SCENARIO)
    return read_file(path, own_agent=True)[0]


def test_text_has_the_turns_and_what_is_expected_of_their_meaning(tmp_path):
    text = as_text(scenario(tmp_path))
    assert text.start.output == "text"
    assert [(one.kind, one.content) for one in text.exchanges] == [
        ("text", "set a timer for ten minutes"),
        ("text", "and Another"),
        ("dtmf", "12#"),
    ]
    assert (text.exchanges[0].heard, text.exchanges[0].answer) == ((), (("10",),))
    assert not any(one.interrupts or one.cue.after != "idle" for one in text.exchanges)


def test_speech_takes_voices_in_turn_and_changes_conditions(tmp_path):
    written = scenario(tmp_path)
    speech = as_speech(written, ["woman-1", "woman-2"], {"telephone": True}, 3)
    assert (speech.caller.voice, speech.caller.telephone, speech.caller.loss) == ("woman-2", True, 0.1)
    assert {one.voice for one in speech.exchanges} == {"woman-2"}
    assert as_speech(written, [], {}, 0) == written


async def test_persona_that_speaks_goes_on_after_the_exchanges(tmp_path):
    written = scenario(tmp_path)
    first = written.exchanges[0]
    lines = [first, None]

    async def improvise(log):
        assert len(log.acts) == 3 - len(lines)
        return lines.pop(0)

    call = Performer(
        FakeLine("hello there"),
        replace(as_speech(written, [], {"loss": 0.0}, 0), exchanges=(first,)),
        FakeStudio(),
        improvise=improvise,
        clock=asyncio.get_running_loop().time,
    )
    log = await call.run()
    assert [act.exchange for act in log.acts] == [first, first]
    assert log.acts[1].began_s > log.acts[0].ended_s


def test_interval_is_wilsons():
    assert wilson(5, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)

"""Pauses inside sentences, with the real server."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from metrics_page import until_metrics
from notes import Notes

from parley.launcher.options import ROOT
from parley.protocol import SpeechStarted, Transcript, TurnDecision, TurnMetrics, TurnOptions
from parley_client import connect
from parley_client.audio.files import read_speech
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import ScriptTurn

TIMER = ROOT / "tests/data/conversation/04-timer.wav"
CUT_MS = 920
"""Where "for" ends."""
WHOLE = "set a timer for ten minutes for the pasta"


@pytest.fixture(scope="module")
def hesitant():
    """The caller falls silent for 0.8 s after "set a timer for"."""
    samples = read_speech(TIMER)
    cut = CUT_MS * 16
    return np.concatenate([samples[:cut], np.zeros(8 * 1600, np.int16), samples[cut:]])


async def hold(server, samples, eagerness, notes=None):
    """One turn of the caller; what was said about it, and its report."""
    notes = notes or Notes()
    turn = TurnOptions(eagerness=eagerness)
    async with connect(server.endpoints.grpc, tools=DEMO_TOOLS, turn=turn) as call:
        script = [ScriptTurn(name="timer", text=WHOLE, samples=samples)]
        (report,) = await ScriptedConversation(call, notes, record=False).run(script)
    return notes, report


async def test_a_pause_inside_a_sentence_does_not_end_the_turn(server, hesitant):
    notes, report = await hold(server, hesitant, "normal")
    assert report.problem == ""
    finals = [event.text for event in notes.of(Transcript) if event.is_final]
    assert finals == ["set a timer for", "ten minutes for the pasta"]
    assert [(tool.name, tool.arguments) for tool in report.tools] == [
        ("set_timer", {"minutes": 10, "label": "pasta"})
    ]
    assert len(notes.of(TurnMetrics)) == 1
    wait, resume, *rest = notes.of(TurnDecision)
    assert (wait.decision, wait.reason, wait.cue, wait.cue_words) == (
        "wait",
        "text_unfinished",
        "preposition",
        "for",
    )
    assert resume.decision == "resume"
    assert (rest[-1].decision, rest[-1].text) == ("commit", WHOLE)
    assert all(event.probability is not None for event in (wait, rest[-1])), "the model was asked"


async def test_without_that_it_does(server, hesitant):
    notes, _ = await hold(server, hesitant, "off")
    assert len(notes.of(SpeechStarted)) == 2
    assert notes.of(TurnDecision) == []
    assert notes.of(TurnMetrics)[0].interrupted, "the agent answered half a sentence"


async def test_a_sentence_without_a_pause_is_answered_at_once(server):
    notes, report = await hold(server, read_speech(TIMER), "eager")
    (decision,) = notes.of(TurnDecision)
    assert (decision.decision, decision.text) == ("commit", WHOLE)
    assert decision.needed_ms == 0
    assert 0 < report.metrics.end_of_turn_ms < 300


class Stopping(Notes):
    """Lets a process hang while a pause is judged, and no longer: Triton gives up one that hangs for long."""

    def __init__(self, process):
        super().__init__()
        self.process = process

    def show(self, event, at_s):
        super().show(event, at_s)
        if isinstance(event, SpeechStarted):
            os.kill(self.process, signal.SIGSTOP)
        elif isinstance(event, TurnDecision):
            os.kill(self.process, signal.SIGCONT)


def unscored(server, least=0):
    """Late scores that Triton's metrics page counts, once it has so many."""
    key = "parley_turn_unscored_total", (("reason", "deadline_exceeded"),)
    return until_metrics(server, lambda page: page.get(key, 0) >= least).get(key, 0)


async def test_a_model_that_hangs_does_not_keep_the_user_waiting(server):
    (process,) = [process.pid for process in server.usage() if process.name.startswith("smart_turn")]
    speech, before = read_speech(TIMER), unscored(server)
    try:
        notes, report = await hold(server, speech, "eager", Stopping(process))
    finally:
        os.kill(process, signal.SIGCONT)
    assert report.problem == ""
    (decision,) = notes.of(TurnDecision)
    assert (decision.decision, decision.reason, decision.text) == ("commit", "not_scored", WHOLE)
    assert report.metrics.end_of_turn_ms < 500
    assert unscored(server, before + 1) == before + 1
    notes, _ = await hold(server, speech, "eager")
    assert notes.of(TurnDecision)[-1].reason == "sounds_complete", "it is asked again"

"""Simulated callers and the real server understand each other."""

from simulate.scores import score

from parley.protocol import TurnOptions
from parley_testing.caller import CallJob, run_calls
from parley_testing.rendering import Studio, lines
from parley_testing.scenario_file import read_file
from parley_testing.voices import ESPEAK, speak_all

SCENARIO = """
title = "A short call"

[[exchange]]
say = "set a timer for [400] ten minutes"
expect = { tools = ["set_timer(minutes=10)"], answer = ["10 minutes"] }

[[exchange]]
say = "tell me a story"
expect = { answer = ["once upon a time"] }

[[exchange]]
say = "please stop"
at = "agent+2000"
expect = { answer = ["okay"] }
"""


async def test_a_simulated_call(server, tmp_path):
    path = tmp_path / "call.toml"
    path.write_text(SCENARIO)
    scenario = read_file(path)[0]
    done = []
    (log,) = await run_calls(
        server.endpoints.grpc,
        [CallJob(scenario)],
        Studio(speak_all(lines([scenario]), ESPEAK)),
        parallel=1,
        turn=TurnOptions(eagerness="patient"),
        on_done=done.append,
    )
    scores = score([log])
    assert done == [log]
    assert (scores.broken, scores.not_staged) == ([], [])
    assert (scores.exchanges, scores.missed.cases, scores.cut_off.cases) == (3, [], [])
    assert (scores.tools.cases, scores.answers.cases) == ([], [])
    assert (scores.missed_interruptions.cases, scores.wrongful.cases) == ([], [])
    assert len(scores.stop_heard) == 1
    assert len(scores.latency) == 3
    assert scores.history.of == 3
    assert scores.history.cases == []
    assert scores.late_audio == 0

from io import StringIO

import pytest
from rich.console import Console
from simulate.report import Rung, jobs_of, ladder_summary, most_calls_held, parse_rungs, print_ladder
from simulate.scores import Scores, Share
from tapes import Tape

GOAL = (700.0, 1_100.0)


def rung(parallel, times, **more):
    whole = Share(of=10)
    return Rung(
        parallel, Scores(**{"latency": times, "missed": whole, "gaps": whole, "exchanges": 10, **more})
    )


def test_rungs_are_written_in_order():
    assert parse_rungs("1,2,6") == [1, 2, 6]
    for wrong in ("0,1", "2,2", "3,1"):
        with pytest.raises(ValueError, match=wrong):
            parse_rungs(wrong)
    with pytest.raises(ValueError, match="invalid literal"):
        parse_rungs("a")


def test_every_caller_makes_as_many_calls_as_the_others():
    scenarios = [Tape().log.scenario for _ in range(4)]
    for parallel in (1, 2, 3, 5, 6):
        jobs = jobs_of(scenarios, parallel)
        assert len(jobs) % parallel == 0
        assert len(jobs) >= max(4, 2 * parallel)
        assert {id(job.scenario) for job in jobs} == set(map(id, scenarios))
    assert [job.seed for job in jobs_of(scenarios, 3)] == [0, 0, 0, 0, 1, 1]


def test_a_rung_holds_if_answers_come_in_time_and_whole():
    assert rung(1, [600.0, 700.0, 1_000.0]).holds(GOAL)
    assert not rung(1, [600.0, 701.0, 1_000.0]).holds(GOAL)
    assert not rung(1, [600.0, 700.0, 1_101.0]).holds(GOAL)
    assert not rung(1, []).holds(GOAL)
    assert not rung(1, [600.0], broken=["lost"]).holds(GOAL)
    assert not rung(1, [600.0], missed=Share(10, ["not heard"])).holds(GOAL)
    assert not rung(1, [600.0], gaps=Share(10, ["90 ms"])).holds(GOAL)
    assert rung(1, [600.0], gaps=Share(20, ["90 ms"])).holds(GOAL)


def test_ladder_reports_the_most_calls_held():
    rungs = [rung(1, [800.0]), rung(2, [600.0]), rung(3, [900.0]), rung(4, [950.0])]
    assert most_calls_held(rungs, GOAL) == 2
    assert most_calls_held(rungs[2:], GOAL) == 0
    console = Console(record=True, width=120, file=StringIO())
    print_ladder(console, rungs, GOAL)
    text = console.export_text()
    assert "Calls at once that hold: 2" in text
    assert "900 / 900" in text
    summary = ladder_summary(rungs, GOAL)
    assert (summary["held"], list(summary["rungs"])) == (2, ["1", "2", "3", "4"])

"""What is said, the load, and how it is shown."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import soundfile
from fake_endpoints import ANSWER, DONE, FINAL, PARTIAL, QUICK, REFUSED, Streams, ended, over, utterance
from fake_services import Service, serving
from harness.recordings import RecordingError, load_recordings
from harness.report import write_html
from stages import cli
from stages.material import Material, load_material
from stages.protocols import RATE, Level, Stage
from stages.results import LevelResult, load_table, notes, published_table, stage_tables
from stages.runner import Runner
from stages.turns import Turn

MATERIAL = Material(utterances=[utterance()], prompts=(), texts=("hello",), questions=[utterance()], about="")


def turns(count, *failed):
    return [Turn({"first_token_ms": 100.0 + number}) for number in range(count)] + [
        Turn(failure=reason) for reason in failed
    ]


def level(name="one", concurrency=1, count=30, failed=("full",)):
    return LevelResult(
        name, Stage.LANGUAGE_MODEL, concurrency, turns(count, *failed), 10.0, 10.0, server_cpu_s=5.0
    )


def test_failures_are_shown_beside_the_figures():
    (row,) = load_table([level(failed=("full", "timeout", "full"))]).rows
    assert row[:6] == ["one", "1", "language model", "33", "2 full, 1 timeout", "50 %"]


def test_what_others_have_published_stands_beside_the_stages_that_were_measured():
    table = published_table({Stage.RECOGNIZER, Stage.CALL})
    assert {row[0] for row in table.rows} == {"recognizer", "call"}
    assert all(len(row) == len(table.head) and row[2].replace(",", "").isdecimal() for row in table.rows)
    assert all("2026-" in row[-1] for row in table.rows)


def test_percentiles_that_too_few_turns_have_are_left_out_and_named():
    (table,) = stage_tables([level(count=30)])
    ((*_, count, p50, p95, p99),) = table.rows
    assert (count, p99) == ("30", "")
    assert re.fullmatch(r"114 \(\d+\N{EN DASH}\d+\)", p50)
    assert p95
    assert any(note.startswith("p99 needs 100 turns") for note in notes([level()]))


def test_a_level_of_which_every_turn_failed_is_a_row():
    (table,) = stage_tables([level(count=0)])
    assert table.rows == [["one", "1", "every turn failed", "0", "", "", ""]]


def test_stages_without_an_endpoint_are_named():
    assert "No endpoint was given for: recognizer, voice, call." in notes([level()])


def test_a_driver_that_was_late_is_named():
    slow = LevelResult("one", Stage.RECOGNIZER, 1, [Turn({"final_ms": 1.0}, late_ms=80.0)], 1.0)
    assert any(note.startswith("The driver was late: in 1 of 2 levels") for note in notes([level(), slow]))
    assert not any("was late" in note for note in notes([level()]))


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []
        self.tags = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.found += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data")]


def test_the_report_is_one_file_that_needs_no_network(tmp_path):
    results = [level("<b>mine</b>", 1), level("<b>mine</b>", 4), level("other", 4)]
    path = tmp_path / "new" / "report.html"
    tables = [*stage_tables(results), load_table(results)]
    write_html(path, "A", about={"command": "a <b>"}, tables=tables, notes=notes(results))
    page, links = path.read_text(), _Links()
    links.feed(page)
    assert not links.tags & {"script", "img", "iframe", "link", "b"}
    assert all(link.startswith("#") for link in links.found)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


async def test_each_worker_takes_its_share_and_calls_again_after_a_call_that_broke():
    script = [(over, ANSWER), (over, DONE), (ended, DONE)]
    agent = Streams(REFUSED, script)
    runner = Runner(MATERIAL, QUICK, lambda: 1.0)
    found = await runner.run("agent", Stage.CALL, agent, Level(1, 2))
    assert (len(found.turns), found.failures["full"]) == (3, 1)
    assert found.server_cpu_s == 0
    assert found.loop_late_ms


async def test_streams_beside_each_other_hear_all_utterances():
    recognizer = Streams([(over, FINAL), (ended, PARTIAL)])
    found = await Runner(MATERIAL, QUICK, lambda: None).run("r", Stage.RECOGNIZER, recognizer, Level(2, 2))
    assert len(found.turns) == len(recognizer.opened) == 6  # three of each at least
    assert found.word_error_rate.value == 0
    assert found.server_cpu_percent is None


def test_parts_of_recordings_are_cut_out(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(RATE, 0.1), RATE)
    manifest = tmp_path / "m.json"
    manifest.write_text(
        '[{"file": "a.wav", "text": "one", "part": [250, 750]}, {"file": "a.wav", "text": ""}]'
    )
    (one,) = load_recordings(manifest)
    assert (one.text, len(one.samples)) == ("one", RATE // 2)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("no json", "m.json"),
        ("[]", "no recording"),
        ('[{"file": "b.wav", "text": "one"}]', "b.wav is not there"),
    ],
)
def test_unreadable_recordings_are_reported(tmp_path, written, complaint):
    manifest = tmp_path / "m.json"
    manifest.write_text(written)
    with pytest.raises(RecordingError, match=complaint):
        load_recordings(manifest)


def test_the_tiny_profile_has_material_without_downloads():
    said = load_material("tiny")
    assert len(said.utterances) > 50
    assert all((said.prompts, said.texts, said.questions))


def test_every_stage_of_an_own_server_is_measured_by_each_protocol():
    written = cli.own_endpoints(["moonshine", "moonshine_transcribe", "qwen3"], "host:1", "http://host:2")
    specs = [cli.parse_endpoint(one) for one in written]
    assert {spec.driver.stage for spec in specs} == set(Stage)
    assert len({(spec.driver.stage, spec.name) for spec in specs}) == len(specs)


async def test_the_program_writes_what_it_measured(tmp_path, capsys):
    service = Service()
    async with serving(service) as url:
        arguments = ["--no-own", "--profile", "tiny", "--concurrency", "1", "--turns", "3"]
        arguments += ["--endpoint", f"openai-chat,url={url}/v1", "--endpoint", "parley-voice,url=nowhere:1"]
        arguments += ["--only", "language-model", "--html", str(tmp_path / "r.html")]
        arguments += ["--json", str(tmp_path / "r.json")]
        status = await _run(arguments)
    assert status == 0, capsys.readouterr().out
    measured = json.loads((tmp_path / "r.json").read_text())
    (only,) = measured["levels"]
    assert (only["turns"], only["failures"]) == (3, {})
    assert only["figures"]["first_token_ms"]["n"] == 3
    assert "command" in measured["machine"]
    assert (tmp_path / "r.html").exists()


async def test_an_endpoint_that_cannot_be_opened_fails_the_program_and_no_other(tmp_path):
    service = Service()
    async with serving(service) as url:
        arguments = ["--no-own", "--profile", "tiny", "--concurrency", "1", "--turns", "1", "--json"]
        arguments += [str(tmp_path / "r.json"), "--endpoint", "parley-llm,url=127.0.0.1:1"]
        arguments += ["--endpoint", f"openai-chat,url={url}/v1"]
        assert await _run(arguments) == 1
    first, second = json.loads((tmp_path / "r.json").read_text())["levels"]
    assert len(first["failures"]) == 1
    assert second["figures"]


async def _run(arguments):
    """The program in a process of its own: it has an event loop, and handles signals."""
    import asyncio
    import sys

    from parley.launcher.options import ROOT

    command = [sys.executable, "-m", "perf", "bench-stages", *arguments]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        async with asyncio.timeout(60):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

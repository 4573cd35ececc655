"""``parley turns tune``, with recorded calls."""

from __future__ import annotations

import json
import tomllib

import pytest

from parley.calls.database import CallInfo
from parley.calls.folder import CallFolder
from parley.errors import WeightsNotFoundError
from parley_client.cli.commands import turns
from parley_client.cli.program import main


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def missing():
        raise WeightsNotFoundError("the package is not installed")

    monkeypatch.setattr(turns, "bundled_folder", missing)


@pytest.fixture
def folder(tmp_path):
    return CallFolder(tmp_path / "calls")


def record(folder, number=1, agent="restaurant", turns_of_call=30, *, hold=(0.6, 900), end=0.95):
    """A call of so many turns, each with a pause inside; what was heard there has one probability each."""
    info = CallInfo(
        call=f"20260504-1200{number:02}-{'ab' * 8}",
        agent=agent,
        session="s",
        language="en-US",
        started="2026",
    )
    begun = folder.begin(info)
    lines, at, utterance = [], 0, 0

    def add(kind, line_ms, **fields):
        lines.append({"at_ms": line_ms, "event": {"type": kind, **fields}})

    for turn in range(turns_of_call):
        probability, length = hold
        for score, pause in ((probability, length), (end, 4_000)):
            utterance += 1
            add("speech_started", at, at_ms=at)
            add("speech_stopped", at + 1_160, at_ms=at + 1_000, detected_at_ms=at + 1_160)
            add("transcript", at + 1_200, utterance=utterance, text="monday", is_final=True)
            decision = {"utterance": utterance, "decision": "wait", "probability": score}
            add("turn_decision", at + 1_201, **decision)
            at += 1_000 + pause
        add("words", at - 3_000, response_id=f"r{turn}", text="yes")
    (folder.path / begun.id / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    folder.finish(begun)


def tune(folder, *more):
    return main(["turns", "tune", str(folder.path), *more])


def test_settings_that_keep_the_share_are_printed_for_the_agents_file(folder, capsys):
    record(folder)
    assert tune(folder, "--cut-offs", "5%") == 0
    out = capsys.readouterr().out
    assert "1 calls: 30 pauses after which the caller went on, 30 after which not" in out
    assert "scored by the calls themselves" in out
    assert "before: 100.0% cut off, 240 ms" in out
    assert "after:  0.0% cut off, 200 ms" in out
    found = tomllib.loads(out[out.index("[turn]") :])["turn"]
    assert found["threshold"] > 0.6
    assert set(found) == {"threshold", "complete_ms", "incomplete_ms", "unfinished_ms", "limit_ms"}


def test_same_calls_give_the_same_output(folder, capsys):
    record(folder)
    assert tune(folder) == tune(folder) == 0
    out = capsys.readouterr().out
    half = len(out) // 2
    assert out[:half] == out[half:]


def test_agents_file_chooses_the_calls_and_what_they_are_compared_with(folder, capsys, tmp_path):
    record(folder, 1, "restaurant")
    record(folder, 2, "hotel")
    file = tmp_path / "hotel.toml"
    file.write_text('instructions = "You take bookings."\n[turn]\neagerness = "off"\n')
    assert tune(folder, "--agent", str(file)) == 0
    out = capsys.readouterr().out
    assert "1 calls" in out
    assert "before: 100.0% cut off, 200 ms" in out  # every pause, as soon as its text is there
    assert tomllib.loads(out[out.index("[turn]") :])["turn"]["eagerness"] == "normal"


def test_share_that_no_settings_keep_is_a_failure(folder, capsys):
    record(folder, hold=(0.99, 4_900))
    assert tune(folder) == 1
    assert "No settings keep 5.0%: the fewest are 100.0%" in capsys.readouterr().out


def test_exported_call_is_read_alone(folder, capsys):
    record(folder, 1)
    record(folder, 2)
    (one, *_) = sorted(path for path in folder.path.iterdir() if path.is_dir())
    assert main(["turns", "tune", str(one)]) == 0
    assert "1 calls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "status", "problem"),
    [
        ([], 1, "at least 20 of each are needed"),
        (["--weights", "nowhere"], 1, "nowhere has neither"),
    ],
)
def test_too_few_pauses_or_no_network_where_one_is_named(folder, capsys, more, status, problem):
    record(folder, turns_of_call=3)
    assert tune(folder, *more) == status
    assert problem in " ".join(capsys.readouterr().err.split())


def test_folder_without_calls_is_wrong_usage(folder, capsys, tmp_path):
    assert main(["turns", "tune", str(tmp_path / "nowhere")]) == 2
    tmp_path.joinpath("empty").mkdir()
    assert main(["turns", "tune", str(tmp_path / "empty")]) == 2
    assert "there is no recorded call that has ended" in " ".join(capsys.readouterr().err.split())


def test_calls_without_words_have_too_few_pauses(folder, capsys):
    record(folder, turns_of_call=0)
    assert tune(folder) == 1
    assert "0 pauses" in capsys.readouterr().out


@pytest.mark.parametrize("share", ["100%", "five", "-1%"])
def test_share_out_of_range_is_wrong_usage(folder, share):
    with pytest.raises(SystemExit) as ended:
        tune(folder, f"--cut-offs={share}")
    assert ended.value.code == 2

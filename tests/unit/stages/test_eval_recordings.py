"""Word errors of recordings by condition, with fakes in the place of recognisers."""

from __future__ import annotations

import sys

import eval_recordings
import eval_voices
import numpy as np
import pytest
from eval_recordings import Ear, Journal
from harness.people import Clip
from harness.recordings import RATE, RecordingError

CLIPS = [
    Clip("a/1", "", "one two three four", np.full(RATE, 0.1, np.float32)),
    Clip("a/2", "", "five six seven eight", np.full(2 * RATE, 0.1, np.float32)),
    Clip("b/1", "", "Nine, ten!", np.full(3 * RATE, 0.1, np.float32)),
]
CALL = 2 * RATE * 800 // 1000

RIGHT = {1: "One, two three 4.", 2: "five six seven eight", 3: "nine ten"}
WRONG = {**RIGHT, 3: "nine hens", 1: "one two three"}


@pytest.fixture
def evaluate(monkeypatch, capsys):
    """Runs the program with a recogniser that knows recordings by their lengths."""

    def run(*arguments, texts=RIGHT, limit=0.1):
        calls = []

        def call(audio):
            calls.append(len(audio))
            return texts[(len(audio) - CALL) // RATE]

        ear = Ear(lambda audio: texts[len(audio) // RATE], call)
        model = (lambda weights: ear, None, lambda count: CLIPS[:count], limit)
        monkeypatch.setattr(eval_recordings, "MODELS", {"moonshine": model})
        monkeypatch.setattr(sys, "argv", ["eval-recordings", *arguments])
        status = eval_recordings.main()
        return status, capsys.readouterr(), calls

    return run


def test_errors_are_counted_by_source_with_an_interval(evaluate):
    status, said, calls = evaluate("--plain", texts=WRONG, limit=0.3)
    whole, clean = said.out.splitlines()[1:]
    assert whole.startswith("whole recordings |  20.0% (0.0% to ")
    assert "2 of 10 | a 12.5% b 50.0%" in whole
    assert clean.startswith("clean")
    assert calls == [CALL + RATE, CALL + 2 * RATE, CALL + 3 * RATE]
    assert status == 0


def test_above_the_limit_the_status_is_1(evaluate):
    assert evaluate("--plain", texts=RIGHT)[0] == 0
    status, said, _ = evaluate("--plain", texts=WRONG)
    assert status == 1
    assert "above the limit of 10%" in said.err


def test_errors_are_shown_on_request(evaluate):
    said = evaluate("--plain", "--show", texts=WRONG, limit=1)[1].out
    assert "    b/1\n      said    Nine, ten!\n      written nine hens" in said
    assert "a/2" not in said


def test_a_stopped_run_goes_on_from_its_journal(evaluate, tmp_path):
    journal = tmp_path / "heard.jsonl"
    first = evaluate("--plain", "--journal", str(journal), texts=WRONG, limit=1)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:-1]) + "\n")  # stopped before the last one
    again = evaluate("--plain", "--journal", str(journal), texts=WRONG, limit=1)
    assert again[2] == [CALL + 3 * RATE]
    assert again[1].out == first[1].out
    assert journal.read_text().splitlines() == lines


def test_a_journal_of_something_else_is_refused(evaluate, tmp_path, capsys):
    journal = tmp_path / "heard.jsonl"
    Journal(journal, "parakeet")
    with pytest.raises(RecordingError, match="is of parakeet, not of moonshine"):
        Journal(journal, "moonshine")
    with pytest.raises(SystemExit, match="2"):
        evaluate("--journal", str(journal))
    assert "name another file" in capsys.readouterr().err


def test_synthetic_recordings_are_there_without_downloads():
    found = eval_recordings.load_synthetic(5)
    assert len(found) == 5
    assert {clip.source for clip in found} == {"synthetic"}
    assert max(np.abs(clip.samples).max() for clip in found) <= 1


class Session:
    """In the place of DNSMOS's network: says where in the audio it was asked."""

    def __init__(self):
        self.asked = []

    def run(self, _, inputs):
        (wave,) = inputs["input_1"]
        self.asked.append((len(wave), wave[0]))
        return [np.array([[1.0, 2.0, 3.0]], np.float32)]


def test_dnsmos_rates_every_nine_seconds_of_speech(monkeypatch):
    session = Session()
    monkeypatch.setattr(eval_voices, "open_session", lambda file: session)
    dnsmos = eval_voices.Dnsmos(None)
    # The publisher's polynomials for signal, background and both.
    expected = [
        -0.08397278 + 1.22083953 + 0.0052439,
        4 * -0.13166888 + 2 * 1.60915514 - 0.39604546,
        9 * -0.06766283 + 3 * 1.11546468 + 0.04602535,
    ]
    ramp = np.repeat(np.arange(11, dtype=np.int16), RATE)
    assert dnsmos.rate(ramp) == pytest.approx(expected)
    assert [(length, at * 32_768) for length, at in session.asked] == [(144_160, 0), (144_160, 1)]
    session.asked.clear()
    assert len(dnsmos.rate(ramp[:RATE])) == 3  # shorter ones are repeated
    assert {length for length, _ in session.asked} == {144_160}


def test_the_table_of_voices_has_the_mean_ratings():
    report = eval_voices.Report(words=100, errors=1, seconds=2.0, took_s=1.0, first_ms=[5.0], lufs=[-19.0])
    report.ratings = [np.array([4.0, 3.0, 3.5]), np.array([3.0, 4.0, 3.5])]
    assert report.line().startswith("  1.00 % | 3.50 / 3.50 / 3.50 |")
    assert report.line().endswith("good")

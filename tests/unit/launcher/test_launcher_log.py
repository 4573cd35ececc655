"""Reading Triton's log. The lines are real ones of Triton 24.10."""

from __future__ import annotations

import errno
import shutil

import pytest

from parley.launcher.log import LogReader, LogState, unescape

RAISES = (
    "E1121 00:05:41.795864 32164 a.cc:1] \"failed to load 'raises' version 1: Internal: "
    'WeightsNotFoundError: no weights at X;\\nrun: make weights\\n\\nAt:\\n  /raises/1/model.py(7): f\\n"'
)
NO_CONFIG = (
    'E1121 00:05:40.024482 32164 model_repository_manager.cc:1460] "Poll failed for model directory '
    "'noconf': failed to read text proto from /repo/noconf/config.pbtxt\""
)
NO_FILE = (
    "I1121 00:05:40.042956 32181 pb_stub.cc:2105]  Failed to preinitialize Python stub: "
    "Python model file not found in '/repo/nomodel/1/model.py'"
)
DEAD = (
    "E1121 00:05:42.650325 32164 model_lifecycle.cc:642] \"failed to load 'segv' version 1: Internal: "
    "Stub process 'segv_0_0' is not healthy.\""
)
PORT = (
    'E1121 00:04:19.754620 31267 main.cc:245] "failed to start GRPC service: Unavailable - '
    "Socket '0.0.0.0:18001' already in use \""
)


def read(*lines):
    state = LogState()
    for line in lines:
        state.feed(line)
    return state


@pytest.mark.parametrize(
    ("line", "model", "error"),
    [
        (RAISES, "raises", "WeightsNotFoundError: no weights at X;\nrun: make weights\n\nAt:\n"),
        (NO_CONFIG, "noconf", "failed to read text proto"),
        (NO_FILE, "nomodel", "Python model file not found"),
        (DEAD, "segv", "Stub process 'segv_0_0' is not healthy."),
    ],
)
def test_failures_are_found_in_every_form(line, model, error):
    failed = read(line).failed
    assert list(failed) == [model]
    assert failed[model].startswith(error)


def test_what_a_model_says_of_its_settings_comes_without_a_trace():
    assert read(RAISES).describe_failures() == (
        "Model 'raises' did not load:\n    no weights at X;\n    run: make weights"
    )
    odd = read(RAISES.replace("WeightsNotFoundError", "KeyError")).describe_failures()
    assert "raises/1/model.py(7)" in odd


def test_progress_is_followed():
    state = read(
        'I1121 00:05:40.024647 32164 model_lifecycle.cc:472] "loading: good:1"',
        "I1121 00:05:43.202892 32164 model_lifecycle.cc:839] \"successfully loaded 'good'\"",
    )
    assert (state.loading, state.loaded, state.serving) == (["good"], ["good"], False)
    state.feed('I1121 00:10:45.511206 9970 http_server.cc:4713] "Started HTTPService at 0.0.0.0:18100"')
    assert state.serving


def test_a_taken_port_is_noticed():
    assert read(PORT).port_taken == "GRPC"


def test_a_dead_process_shows_what_models_printed_last():
    state = read("| a table |", "+---+", *(f"line {number}" for number in range(20)), DEAD)
    described = state.describe_failures()
    assert "line 19" in described
    assert "line 7" not in described, "only the last lines"
    assert "table" not in described


def test_harmless_noise_is_not_in_the_tail():
    state = read("Error: Failed to initialize NVML", "something real")
    assert state.tail() == "    something real"


def test_escapes_are_undone_once():
    assert unescape(r"a\nb \"c\" \\n") == 'a\nb "c" \\n'


def test_a_reader_gives_only_whole_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    reader = LogReader(path)
    assert reader.lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthr\xffee\n")
    assert reader.lines() == ["two", "thr\ufffdee"]
    assert reader.lines() == []


def test_a_log_that_has_become_large_begins_anew(tmp_path):
    path = tmp_path / "triton.log"
    with path.open("ab", buffering=0) as log:
        reader = LogReader(path, max_bytes=12)
        log.write(b"first\nsecond\nthi")
        assert reader.lines() == ["first", "second"]
        assert path.stat().st_size == 0
        assert path.with_suffix(".previous.log").read_bytes() == b"first\nsecond\nthi"
        log.write(b"rd\n")
        assert reader.lines() == ["third"]
        assert path.read_bytes() == b"rd\n", "without a hole where the writer was before"


def test_a_log_is_shortened_where_there_is_no_room_for_the_log_before(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", refuse)
    path = tmp_path / "triton.log"
    path.write_bytes(b"first\nsecond\n")
    assert LogReader(path, max_bytes=12).lines() == ["first", "second"]
    assert path.stat().st_size == 0


def test_a_model_that_is_loaded_again_is_named_once():
    state = LogState()
    for _ in range(2):
        state.feed('I1121 00:05:40.024647 32164 a.cc:1] "loading: echo:1"')
        state.feed("I1121 00:05:40.024647 32164 a.cc:1] \"successfully loaded 'echo'\"")
    assert (state.loading, state.loaded) == (["echo"], ["echo"])


def test_the_end_of_all_requests_is_seen():
    state = LogState()
    state.feed('I1121 00:05:40.024647 32164 a.cc:1] "Waiting for in-flight requests to complete."')
    assert not state.unloading
    state.feed('I1121 00:05:40.024647 32164 a.cc:1] "All models are stopped, unloading models"')
    assert state.unloading


def test_warnings_of_models_in_json_count_as_complaints():
    state = read(
        '{"ts": "2026-11-23T16:41:03.123Z", "level": "info", "source": "qwen3", "message": "ready"}',
        '{"ts": "2026-11-23T16:41:03.124Z", "level": "error", "source": "qwen3", "message": "engine died"}',
        '{"ts": "cut off',
    )
    assert state.tail() == '    qwen3: engine died\n    {"ts": "cut off'

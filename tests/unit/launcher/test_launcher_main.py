"""The command of the launcher: signals, and weights before the start."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from parley.launcher import __main__ as command
from parley.launcher import larger_model, measured_calls
from parley.launcher.__main__ import Console, stop_on_signals
from parley.launcher.errors import SetupIncompleteError, StartInterruptedError
from parley.launcher.larger_model import LARGEST as LARGE
from parley.launcher.models import bring_weights
from parley.launcher.options import ServerOptions

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Server:
    def __init__(self):
        self.calls = []

    def request_stop(self):
        self.calls.append("stop")

    def kill(self):
        self.calls.append("kill")


@pytest.fixture(autouse=True)
def signals():
    # The tests themselves may run under nohup.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def server():
    return Server()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_and_the_second_kills(server, number):
    stop_on_signals(server, Console())
    signal.raise_signal(number)
    assert server.calls == ["stop"]
    signal.raise_signal(signal.SIGTERM)
    assert server.calls == ["stop", "kill"]


def test_a_server_started_by_nohup_survives_its_terminal(server):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_on_signals(server, Console())
    signal.raise_signal(signal.SIGHUP)
    assert server.calls == []


def test_a_launcher_that_cannot_write_is_stopped_all_the_same(server, monkeypatch):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stderr", full)
        stop_on_signals(server, Console())
        signal.raise_signal(signal.SIGTERM)
    assert server.calls == ["stop"]


def test_console_writes_names_that_are_not_utf8(capfd):
    Console().write_line("agents/caf\udce9.toml is wrong")
    assert capfd.readouterr().err == "agents/caf\\udce9.toml is wrong\n"


@pytest.fixture
def program(tmp_path):
    """In place of ``scripts/fetch_models``: notes its arguments, and ends as given."""

    def write(ending="exit 0"):
        path = tmp_path / "fetch_models"
        path.write_text(f'#!/bin/sh\necho "$@ $PARLEY_MODELS_DIR" >>{tmp_path}/called\n{ending}\n')
        path.chmod(0o755)
        return path

    return write


def called(tmp_path):
    path = tmp_path / "called"
    return path.read_text().splitlines() if path.exists() else []


def test_the_program_gets_the_profile_and_the_models_environment(program, tmp_path):
    options = ServerOptions(profile="open", environment={"PARLEY_MODELS_DIR": "/mine"})
    bring_weights(options, {"PARLEY_MODELS_DIR": "/other"}, program())
    assert called(tmp_path) == ["--profile open --brief /mine"]


def test_the_program_gets_the_language_model_that_a_variable_chooses(program, tmp_path):
    for chosen in ("qwen2.5-coder-1.5b-w8a8", "/elsewhere/qwen2.5-coder-1.5b-w8a8", "mine"):
        bring_weights(ServerOptions(profile="open"), {"PARLEY_WEIGHTS_QWEN3": chosen}, program())
    assert [line.strip() for line in called(tmp_path)] == [
        "--profile open --brief qwen2.5-coder-1.5b-w8a8",
        *["--profile open --brief"] * 2,
    ]


@pytest.mark.parametrize(
    "options",
    [
        ServerOptions(),
        ServerOptions(profile="open", load_models=("espeak",)),
        ServerOptions(profile="open", model_repository=Path("/elsewhere")),
    ],
    ids=["tiny", "chosen models", "another repository"],
)
def test_nothing_is_brought_where_models_are_chosen(program, tmp_path, options):
    bring_weights(options, {}, program())
    assert called(tmp_path) == []


def test_an_installation_without_the_program_starts_all_the_same(tmp_path):
    bring_weights(ServerOptions(profile="open"), {}, tmp_path / "none")


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (1, SetupIncompleteError, r"profile open has not all of its weights.*docs/models\.md"),
        (130, StartInterruptedError, "interrupted"),
    ],
)
def test_program_that_fails_ends_the_start(program, status, error, words):
    with pytest.raises(error, match=words):
        bring_weights(ServerOptions(profile="open"), {}, program(f"exit {status}"))


@pytest.fixture
def large_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(larger_model, "count_cores", lambda: 8)
    memory = type("Memory", (), {"available": 64 << 30})
    monkeypatch.setattr(larger_model.psutil, "virtual_memory", lambda: memory)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return {"PARLEY_MODELS_DIR": str(tmp_path)}


def test_larger_model_is_measured_once_on_a_large_machine(program, tmp_path, large_machine):
    options, path = ServerOptions(profile="open", environment=large_machine), program()
    bring_weights(options, {}, path)
    assert [line.removesuffix(f" {tmp_path}") for line in called(tmp_path)] == [
        "--profile open --brief",
        f"--brief {LARGE}",
        "-m parley.launcher.advice --keep",
    ]
    larger_model.keep_advice(tmp_path, LARGE)  # what the last of them does
    bring_weights(options, {}, path)
    assert len(called(tmp_path)) == 4


@pytest.mark.parametrize("chosen", ["PARLEY_WEIGHTS_QWEN3", "PARLEY_VOICE_AGENT_LLM"])
def test_nothing_is_measured_where_a_model_is_chosen(program, tmp_path, large_machine, chosen):
    bring_weights(ServerOptions(profile="open", environment=large_machine), {chosen: "mine"}, program())
    assert len(called(tmp_path)) == 1


def test_measurement_that_fails_leaves_the_profiles_model(program, tmp_path, large_machine, capsys):
    fails = program(f'case "$*" in *{LARGE}*) exit 1;; esac')
    bring_weights(ServerOptions(profile="open", environment=large_machine), {}, fails)
    assert len(called(tmp_path)) == 2
    assert "the model of the profile is served" in capsys.readouterr().err


def test_model_that_was_found_in_time_is_served_on_that_machine(tmp_path, large_machine, monkeypatch):
    options = ServerOptions(profile="open", environment=large_machine)
    variable = "PARLEY_WEIGHTS_QWEN3"
    larger_model.keep_advice(tmp_path, LARGE)
    assert variable not in larger_model.with_advised_model(options, {}).environment  # it is not here
    (tmp_path / LARGE).mkdir()
    assert larger_model.with_advised_model(options, {}).environment[variable] == LARGE
    assert larger_model.with_advised_model(options, {variable: "mine"}) is options
    assert larger_model.with_advised_model(dataclasses.replace(options, profile="gpu"), {}).profile == "gpu"
    monkeypatch.setattr(larger_model, "count_cores", lambda: 2)  # another machine, or a smaller container
    assert larger_model.with_advised_model(options, {}) is options


def test_calls_that_were_measured_limit_later_servers_of_that_machine(tmp_path, large_machine, monkeypatch):
    options = ServerOptions(profile="open", environment=large_machine)
    assert measured_calls.with_measured_calls(options, {}) is options
    path = measured_calls.keep_calls(options, {}, 3)
    assert path == str(tmp_path / "capacity.json")
    limited = measured_calls.with_measured_calls(options, {}).environment
    assert [limited[f"PARLEY_VOICE_AGENT_MAX_{what}"] for what in ("CALLS", "SESSIONS")] == ["3", "6"]
    for other in (
        dataclasses.replace(options, profile="tiny"),
        dataclasses.replace(options, profile="gpu"),
        dataclasses.replace(options, environment={**large_machine, "PARLEY_VOICE_AGENT_MAX_SESSIONS": "8"}),
    ):
        assert measured_calls.with_measured_calls(other, {}) is other
    monkeypatch.setattr(larger_model, "count_cores", lambda: 2)
    assert measured_calls.with_measured_calls(options, {}) is options
    Path(path).write_text('{"calls": "many"}')
    assert measured_calls.with_measured_calls(options, {}) is options
    Path(path).unlink()
    Path(path).mkdir()
    assert "not kept" in measured_calls.keep_calls(options, {}, 3)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"weights": "qwen2.5-coder-1.5b-w8a8"}'])
def test_advice_that_is_not_of_this_machine_is_none(tmp_path, content):
    (tmp_path / "language-model.json").write_text(content)
    assert larger_model.read_advice(tmp_path) is None


def test_the_program_ends_with_the_launcher(program, tmp_path):
    path = program("exec sleep 600")
    code = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "from pathlib import Path; from parley.launcher import ServerOptions, bring_weights\n"
        "bring_weights(ServerOptions(profile='open'), {}, Path(sys.argv[1]))\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(path)], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not called(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.01)
    children = psutil.Process(launcher.pid).children()
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=30)
    assert children
    assert not any(child.is_running() for child in children)


def test_a_taken_port_is_noticed_before_anything_is_brought_or_checked(monkeypatch, capfd):
    def unreached(*_):
        raise AssertionError

    monkeypatch.setattr(command, "bring_weights", unreached)
    monkeypatch.setattr(command.EmbeddedServer, "check_settings", unreached)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main(["--any-port", "--name", "none", "--http-port", str(port)]) == 1
    error = capfd.readouterr().err
    assert f"error: The http port 127.0.0.1:{port} cannot be used (Address already in use)" in error
    assert f"process {os.getpid()} (" in error
    assert "--any-port" in error


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--grpc-port=99999", "a port expected, 0 to 65535, not '99999'"),
        ("--http-port=-1", "a port expected, 0 to 65535, not '-1'"),
        ("--metrics-port=x", "a port expected, 0 to 65535, not 'x'"),
        ("--ready-timeout=nan", "a number above 0 expected, not 'nan'"),
        ("--exit-timeout=-1", "a whole number expected, not '-1'"),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(argument, words, capfd):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--name", "none", argument])
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(("arguments", "brought"), [([], ["tiny"]), (["--no-fetch"], [])])
def test_the_command_brings_weights_unless_no_fetch_is_given(monkeypatch, arguments, brought):
    seen = []

    def bring(options):
        seen.append(options.profile)
        raise SetupIncompleteError("enough")

    def start(_):
        raise SetupIncompleteError("enough")

    monkeypatch.setattr(command, "bring_weights", bring)
    monkeypatch.setattr(command.EmbeddedServer, "start", start)
    assert command.main(["--profile", "tiny", "--any-port", "--name", "none", *arguments]) == 1
    assert seen == brought

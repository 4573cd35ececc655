"""The command of the launcher: signals, and weights before the start."""

from __future__ import annotations

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
from parley.launcher.__main__ import Console, stop_on_signals
from parley.launcher.errors import SetupIncompleteError, StartInterruptedError
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

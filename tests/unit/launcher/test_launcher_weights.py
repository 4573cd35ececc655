"""Bringing a profile's weights before the start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from parley.launcher import __main__ as command
from parley.launcher.errors import SetupIncompleteError, StartInterruptedError
from parley.launcher.options import ServerOptions
from parley.launcher.weights import bring_weights


@pytest.fixture
def program(tmp_path):
    """In place of ``scripts/fetch_models``: notes how it was called, and ends as it is told to."""

    def write(ending="exit 0"):
        path = tmp_path / "fetch_models"
        path.write_text(f'#!/bin/sh\necho "$@ $PARLEY_MODELS_DIR" >>{tmp_path}/called\n{ending}\n')
        path.chmod(0o755)
        return path

    return write


def called(tmp_path):
    path = tmp_path / "called"
    return path.read_text().splitlines() if path.exists() else []


def test_the_program_is_told_the_profile_and_the_models_environment(program, tmp_path):
    options = ServerOptions(profile="open", environment={"PARLEY_MODELS_DIR": "/mine"})
    bring_weights(options, {"PARLEY_MODELS_DIR": "/other"}, program())
    assert called(tmp_path) == ["--profile open /mine"]


@pytest.mark.parametrize(
    "options",
    [
        ServerOptions(),
        ServerOptions(profile="open", load_models=("espeak",)),
        ServerOptions(profile="open", model_repository=Path("/elsewhere")),
    ],
    ids=["tiny", "chosen models", "another repository"],
)
def test_nothing_is_brought_where_nothing_is_wanted(program, tmp_path, options):
    bring_weights(options, {}, program())
    assert called(tmp_path) == []


def test_an_installation_without_the_program_starts_all_the_same(tmp_path):
    bring_weights(ServerOptions(profile="open"), {}, tmp_path / "none")


def test_a_failure_ends_the_start(program):
    with pytest.raises(
        SetupIncompleteError, match=r"profile open has not all of its weights.*docs/models\.md"
    ):
        bring_weights(ServerOptions(profile="open"), {}, program("exit 1"))


def test_an_interruption_is_one(program):
    with pytest.raises(StartInterruptedError):
        bring_weights(ServerOptions(profile="open"), {}, program("exit 130"))


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


@pytest.mark.parametrize(("arguments", "brought"), [([], ["tiny"]), (["--no-fetch"], [])])
def test_the_command_brings_unless_it_is_not_to(monkeypatch, arguments, brought):
    seen = []

    def bring(options):
        seen.append(options.profile)
        raise SetupIncompleteError("enough")

    def start(_):
        raise SetupIncompleteError("enough")

    monkeypatch.setattr(command, "bring_weights", bring)
    monkeypatch.setattr(command.EmbeddedServer, "start", start)
    before = (
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGHUP),
    )
    try:
        assert command.main(["--profile", "tiny", "--any-port", *arguments]) == 1
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    assert seen == brought

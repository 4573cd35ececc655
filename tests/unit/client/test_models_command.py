"""``parley models``, with a program in place of the one that knows the weights."""

from __future__ import annotations

import pytest

from parley_client.cli import main
from parley_client.commands import models, own_server
from parley_client.errors import ClientError


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Notes its arguments; ends with the status in the file ``status``."""
    path = tmp_path / "fetch_models"
    path.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\nexit $(cat {tmp_path}/status)\n')
    path.chmod(0o755)
    (tmp_path / "status").write_text("0")
    monkeypatch.setattr(models, "_PROGRAM", path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([], "--status --profile usual"),
        (["--profile", "open", "--verify"], "--status --profile open --verify"),
        (["--json"], "--status --profile usual --json"),
    ],
)
def test_the_program_is_asked(program, monkeypatch, given, passed):
    monkeypatch.setattr(models, "default_profile", lambda: "usual")
    assert main(["models", *given]) == 0
    assert (program / "arguments").read_text().strip() == passed


def test_what_is_missing_is_told_by_the_exit_status(program):
    (program / "status").write_text("1")
    assert main(["models", "--profile", "open"]) == 1


def test_without_a_checkout_there_is_no_list(program, capsys):
    (program / "fetch_models").unlink()
    assert main(["models", "--profile", "open"]) == 1
    assert "in a checkout" in capsys.readouterr().err


def test_a_client_without_the_server_cannot_know_the_default(program, monkeypatch, capsys):
    def missing():
        raise ClientError("no server can be started here")

    monkeypatch.setattr(own_server, "_load_launcher", missing)
    assert main(["models"]) == 1
    assert "no server" in capsys.readouterr().err


def test_a_profile_that_there_is_not_is_refused_with_those_that_there_are(program, capsys):
    assert main(["models", "--profile", "nope"]) == 1
    assert "parley: there is no profile 'nope'; there are gpu, open, tiny" in capsys.readouterr().err
    assert not (program / "arguments").exists()

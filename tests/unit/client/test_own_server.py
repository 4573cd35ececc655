"""A server of one's own: started, and stopped whatever happens."""

from __future__ import annotations

import io
import os
import signal
from types import SimpleNamespace

import pytest
from rich.console import Console

from parley_client.cli import own_server
from parley_client.cli.commands import demo, models
from parley_client.cli.output import OutputConsole
from parley_client.cli.program import main
from parley_client.errors import ClientError, OutputClosedError


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


def test_missing_weights_set_the_exit_status(program):
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


@pytest.mark.parametrize("command", ["models", "demo", "capacity"])
def test_a_profile_that_there_is_not_is_refused_with_the_nearest(program, capsys, command):
    with pytest.raises(SystemExit, match="2"):
        main([command, "--profile", "opne"])
    error = capsys.readouterr().err
    assert f"usage: parley {command} " in error
    assert "no profile 'opne' (did you mean open?); there are gpu, open, tiny" in error
    assert not (program / "arguments").exists()


def test_without_the_server_any_profile_may_be_that_of_a_running_one(monkeypatch):
    def missing():
        raise ClientError("no server can be started here")

    monkeypatch.setattr(own_server, "_load_launcher", missing)
    assert own_server.profile_name("mine") == "mine"


class LauncherError(Exception):
    pass


class Server:
    """Notes what is done with it; ``during`` happens inside the call of that name."""

    def __init__(self):
        self.done, self.during, self.pid = [], {}, 0
        self.endpoints = SimpleNamespace(grpc="127.0.0.1:5")

    def _note(self, name):
        self.done.append(name)
        self.during.get(name, lambda: None)()

    def made(self, options, on_progress):
        self.options, self.say = options, on_progress
        return self

    def brought(self, options):
        assert options is self.options
        self._note("bring")

    def check_free(self):
        self._note("free")

    def check_settings(self):
        self._note("check")

    def start(self):
        self._note("start")
        self.pid = 7

    def kill(self):
        self._note("kill")

    def stop(self):
        self._note("stop")
        self.done.append("stopped")


@pytest.fixture
def server(monkeypatch):
    fake = Server()
    launcher = SimpleNamespace(
        ServerOptions=SimpleNamespace,
        EmbeddedServer=fake.made,
        LauncherError=LauncherError,
        DEFAULT_PROFILE="usual",
        list_profiles=lambda _: ["gpu", "open", "tiny"],
        bring_weights=fake.brought,
        leave_busy_ports=lambda options: options,
    )
    monkeypatch.setattr(own_server, "_load_launcher", lambda: launcher)
    return fake


def hold(console=None):
    with own_server.running_server(None, console or Console(file=io.StringIO()), "demo") as address:
        return address


def fail(error):
    raise error


def test_a_server_is_started_and_stopped(server):
    assert hold() == "127.0.0.1:5"
    assert server.done == ["free", "check", "bring", "start", "stop", "stopped"]


def test_unusable_options_are_refused_before_any_output(server):
    server.during["check"] = lambda: fail(LauncherError("no profile"))
    console = Console(file=io.StringIO())
    with pytest.raises(ClientError, match="no profile"):
        hold(console)
    assert console.file.getvalue() == ""
    assert server.done == ["free", "check", "stop", "stopped"]


def test_weights_that_cannot_be_brought_end_it_before_the_start(server):
    server.during["bring"] = lambda: fail(LauncherError("no weights"))
    with pytest.raises(ClientError, match="no weights"):
        hold()
    assert server.done == ["free", "check", "bring", "stop", "stopped"]


def test_the_demonstration_takes_the_usual_profile_or_the_one_that_is_named(server, monkeypatch):
    monkeypatch.setattr(demo, "run_to_end", lambda coroutine: coroutine.close() or 0)
    for flags, profile in ([], "usual"), (["--profile", "open"], "open"):
        assert main(["demo", "--out", os.devnull, *flags]) == 0
        assert server.options.profile == profile


def test_launcher_output_during_a_call_is_shown_afterwards(server, monkeypatch, tmp_path):
    monkeypatch.setattr(own_server, "CHECKOUT", tmp_path)
    (tmp_path / ".server/demo").mkdir(parents=True)
    server.during["start"] = lambda: server.say("loaded qwen3 (1 of 9)")
    console = Console(file=io.StringIO(), width=200)
    with own_server.running_server(None, console, "demo"):
        server.say("qwen3 failed its canary, which is repeated: late")
        server.say("qwen3 is loaded again")
        assert "canary" not in console.file.getvalue()
    shown = console.file.getvalue()
    assert "server: loaded qwen3" in shown
    log = tmp_path / ".server/demo/launcher.log"
    assert f"server: 2 lines about it meanwhile: {log}" in shown
    first, second = log.read_text().splitlines()
    assert first[9:] == "qwen3 failed its canary, which is repeated: late"
    assert second[9:] == "qwen3 is loaded again"


def test_brief_start_keeps_the_launcher_lines_in_the_file_only(server, monkeypatch, tmp_path):
    monkeypatch.setattr(own_server, "CHECKOUT", tmp_path)
    (tmp_path / ".server/demo").mkdir(parents=True)
    server.during["start"] = lambda: [server.say(f"loaded model {n} [of 9]") for n in range(9)]
    console = Console(file=io.StringIO(), width=200)
    with own_server.own_server(console, "demo", is_brief=True):
        server.say("qwen3 is loaded again")
    log = tmp_path / ".server/demo/launcher.log"
    assert [line.split()[0] for line in console.file.getvalue().splitlines()] == [
        *("Starting", "Ready", "server:", "server:")
    ]
    assert f"server: 1 lines about it meanwhile: {log}" in console.file.getvalue()
    assert [line[9:] for line in log.read_text().splitlines()] == [
        *(f"loaded model {n} [of 9]" for n in range(9)),
        "qwen3 is loaded again",
    ]


def test_usual_ports_are_taken_where_they_are_free(server, monkeypatch):
    launcher = own_server._load_launcher()
    launcher.leave_busy_ports = lambda options: SimpleNamespace(**vars(options), grpc_port=8001, http_port=0)
    with own_server.own_server(Console(file=io.StringIO()), "demo", usual_ports=True):
        assert (server.options.grpc_port, server.options.http_port) == (8001, 0)


def test_a_given_server_is_left_alone(server):
    with own_server.running_server("10.0.0.1:8001", Console(file=io.StringIO()), "demo") as address:
        assert address == "10.0.0.1:8001"
    assert not server.done


def test_a_measurement_gets_the_server_itself_with_its_own_folder_and_options(server):
    with own_server.own_server(Console(file=io.StringIO()), "bench", load_models=("a",)) as own:
        assert own is server
    assert server.options.state_dir.parts[-2:] == (".server", "bench")
    assert server.options.load_models == ("a",)


def test_a_server_that_cannot_start_says_why(server):
    server.during["start"] = lambda: fail(LauncherError("port taken"))
    with pytest.raises(ClientError, match="port taken"):
        hold()
    assert server.done[-1] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_stopping_hastens_it(server, number):
    before = signal.getsignal(number)
    server.during["stop"] = lambda: signal.raise_signal(number)
    hold()
    assert server.done == ["free", "check", "bring", "start", "stop", "kill", "stopped"]
    assert signal.getsignal(number) is before


def test_a_closed_terminal_does_not_keep_the_server_alive(server):
    class Terminal(io.StringIO):
        def write(self, text):
            if "stop" in text or "Ready" in text:
                raise OSError("Input/output error")
            return super().write(text)

    with pytest.raises(OSError, match="Input/output"):
        hold(Console(file=Terminal()))
    assert server.done[-1] == "stopped"


def test_a_reader_that_left_does_not_keep_the_server_alive(server):
    read, write = os.pipe()
    server.during["start"] = lambda: os.close(read)
    with os.fdopen(write, "wb", buffering=0) as pipe, io.TextIOWrapper(pipe, write_through=True) as file:
        console = OutputConsole(file=file)
        with pytest.raises(OutputClosedError):
            hold(console)
    assert server.done == ["free", "check", "bring", "start", "stop", "stopped"]

"""The command ``parley gateway``."""

import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from parley_client.cli.commands.gateway import _flags
from parley_client.cli.program import build_parser, main

STARTED_S = 30.0


def flags(*arguments):
    return _flags(build_parser().parse_args(["gateway", *arguments]))


def test_flags_are_settings():
    given = flags("--listen", "[::1]:9000", "--server", "a:1, b:2", "--certificate", "c")
    assert given["servers"] == {"addresses": ["a:1", "b:2"]}
    assert (given["listen"]["host"], given["listen"]["port"]) == ("::1", 9000)
    assert given["listen"]["certificate"] == "c"
    assert set(flags()["listen"].values()) == {None}
    assert flags("--listen", "9000")["listen"]["host"] is None


def test_a_port_that_is_taken_leads_to_another(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["gateway", "--listen", str(port)]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert f"cannot listen on 127.0.0.1:{port}" in shown
    assert "--listen PORT" in shown


@pytest.mark.parametrize(
    "arguments",
    [["--listen", "host"], ["--listen", "h:70000"], ["--server", "a:1,b"]],
)
def test_invalid_addresses_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refusal:
        flags(*arguments)
    assert refusal.value.code == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "PARLEY_GATEWAY_SECURITY_KEYS_FILE"),
        (["--listen", "0", "--certificate", "none.pem"], "certificate none.pem cannot be used"),
        (["--config", "none.toml"], "none.toml"),
        (["--listen", "192.0.2.1:0", "--config", "keys.toml"], "cannot listen on 192.0.2.1"),
    ],
)
def test_unusable_settings_are_a_one_line_error(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.toml").write_text("[security]\ninsecure_allow_anonymous = true\n")
    assert main(["gateway", *arguments]) == 1
    shown = capsys.readouterr().err
    assert words in " ".join(shown.split())
    assert "Traceback" not in shown


@pytest.mark.parametrize("output", ["/dev/full", "closed pipe"])
def test_gateway_whose_output_cannot_be_written_runs_on(output):
    command = [sys.executable, "-m", "parley_client", "gateway", "--listen", "0", "--server", "127.0.0.1:9"]
    if output == "/dev/full":
        stdout = os.open(output, os.O_WRONLY)
    else:
        reading, stdout = os.pipe()
        os.close(reading)
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        os.close(stdout)
        try:
            seen = ""
            while "cannot be written" not in seen:
                line = process.stderr.readline()
                assert line, seen
                seen += line
            process.send_signal(signal.SIGTERM)
            assert process.wait(STARTED_S) == 0
            assert "Traceback" not in seen + process.stderr.read()
        finally:
            process.kill()


# Stopped meanwhile, it gets the two together.
_BOTH = (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT)


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), _BOTH], ids=["one", "two"])
def test_command_prints_its_address_and_ends_on_a_signal(signals):
    command = [sys.executable, "-m", "parley_client", "gateway", "--listen", "0", "--server", "127.0.0.1:9"]
    environment = os.environ | {"PARLEY_GATEWAY_LISTEN_HEALTH_PORT": "0"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for_people, for_programs = process.stdout.readline(), process.stdout.readline()
            words = dict(word.split("=", 1) for word in for_programs.split()[1:])
            assert for_programs.startswith("ready ")
            assert words["http"] in for_people
            assert words["servers"] == "127.0.0.1:9"
            assert httpx.get(f"{words['http']}/healthz").status_code == 200
            assert httpx.get(f"{words['http']}/readyz").status_code == 503
            assert httpx.get(f"{words['health']}/healthz").status_code == 200
            for number in signals:
                process.send_signal(number)
            assert process.wait(STARTED_S) == 0
            output = process.stderr.read()
            assert "nothing answers at 127.0.0.1:9: calls are refused until a server does" in output
            assert "make serve" in output
            assert "Traceback" not in output
        finally:
            process.kill()

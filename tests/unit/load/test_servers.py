"""Programs on this machine: started until they are ready, and ended."""

from __future__ import annotations

import json
import sys

import pytest
from harness.servers import Gateway, Program, Server, ThisMachine, write_servers

from parley.errors import DeadlineExceededError, ParleyError

# It says "ready 1" at its first start and "ready 2" at the next, ignores SIGTERM, and ends with SIGINT.
STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
print("ready", len(starts.read_text()), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def machine():
    host = ThisMachine("here")
    yield host
    host.kill()


async def start(program, folder, source=STUBBORN, ready_s=60.0):
    command = [sys.executable, "-c", source, folder / "starts"]
    await program.launch(command, lambda: program.find_line("ready"), ready_s=ready_s)


async def test_program_that_logs_its_line_is_ready(machine, tmp_path):
    program = Program(machine, "stubborn", tmp_path)
    await start(program, tmp_path)
    assert program.pid
    assert program.status is None
    assert program.find_line("ready") == "ready 1"


async def test_line_of_an_earlier_start_is_not_found_after_the_next(machine, tmp_path):
    program = Program(machine, "stubborn", tmp_path)
    await start(program, tmp_path)
    machine.kill()
    assert (program.pid, program.status) == (0, 7)
    await start(program, tmp_path)
    assert program.find_line("ready") == "ready 2"
    assert (tmp_path / "stubborn.log").read_text() == "ready 1\nready 2\n"


async def test_program_that_ends_before_it_is_ready_is_an_error_with_its_last_words(machine, tmp_path):
    program = Program(machine, "short", tmp_path)
    with pytest.raises(ParleyError, match=r"short has ended: .*no port"):
        await start(program, tmp_path, "print('no port')")


async def test_program_that_does_not_end_in_time_is_an_error_and_is_ended_by_kill(machine, tmp_path):
    program = Program(machine, "stubborn", tmp_path)
    await start(program, tmp_path)
    with pytest.raises(DeadlineExceededError, match="stubborn has not ended"):
        await program.stop(0.0)
    machine.kill()
    assert program.status == 7


async def test_server_on_this_machine_has_the_addresses_of_its_ready_line(machine, tmp_path):
    said = "ready grpc=127.0.0.1:11 http=127.0.0.1:12 metrics=127.0.0.1:13"
    script = f"print({said!r}, flush=True); import signal; signal.pause()"
    server = Server(machine, "tiny", tmp_path, wrapper=[sys.executable, "-c", script])
    await server.start()
    assert (server.address, server.http, server.metrics) == ("127.0.0.1:11", "127.0.0.1:12", "127.0.0.1:13")


async def test_gateway_on_this_machine_gets_its_servers_and_any_port(machine, tmp_path):
    servers = write_servers(tmp_path / "servers", ["127.0.0.1:8001"])
    script = (
        "import json, os, signal\n"
        "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('PARLEY_GATEWAY')}))\n"
        "print('ready http=http://127.0.0.1:14 servers=1', flush=True)\n"
        "signal.pause()\n"
    )
    gateway = Gateway(machine, servers, tmp_path, {"PARLEY_GATEWAY_X": "y"}, [sys.executable, "-c", script])
    await gateway.start()
    assert (gateway.url, gateway.address) == ("http://127.0.0.1:14", "127.0.0.1:14")
    given = json.loads(gateway.log_path.read_text().splitlines()[0])
    assert given["PARLEY_GATEWAY_LISTEN_PORT"] == "0"
    assert given["PARLEY_GATEWAY_SERVERS_FILE"] == str(servers)
    assert given["PARLEY_GATEWAY_X"] == "y"
    assert "PARLEY_GATEWAY_LISTEN_METRICS_PORT" not in given

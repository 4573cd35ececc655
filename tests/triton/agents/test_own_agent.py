"""``parley run``: an agent of a Python file at a real server."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
from notes import Notes

from parley.errors import UnknownAgentError
from parley.launcher.options import ROOT
from parley.protocol import ToolRequest, ToolRun
from parley_client import connect
from parley_client.audio.files import read_speech
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.script import ScriptTurn

CLIP = ROOT / "tests/data/conversation/08-time.wav"
CLOCK = '''
from parley_client import Agent, tool

agent = Agent(instructions="Tell the time.", greeting="", page={"title": "Clock"})


@tool
def get_time(city: str) -> dict[str, str]:
    """Get the time in a city."""
    return {"time": "15:52" if city == "Tokyo" else "unknown"}
'''


class Command:
    """The command in a process of its own."""

    def __init__(self, process):
        self._process = process
        self.lines = []

    async def wait_for(self, text):
        """Read its output up to a line with this text."""
        async with asyncio.timeout(60):
            while line := (await self._process.stdout.readline()).decode():
                self.lines.append(line)
                if text in line:
                    return
        pytest.fail(f"{text!r} was never printed: {''.join(self.lines)}")

    async def end(self, number):
        """End it by a signal; its exit status."""
        self._process.send_signal(number)
        async with asyncio.timeout(30):
            self.lines.append((await self._process.stdout.read()).decode())
            return await self._process.wait()


@pytest.fixture
async def command(server, tmp_path):
    source = tmp_path / "clock.py"
    source.write_text(CLOCK)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley_client", "run", str(source)),
        *("--server", server.address, "--agents", str(server.agents)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    started = Command(process)
    started.source = source
    yield started
    if process.returncode is None:
        process.kill()
    await process.wait()


async def ask(server):
    notes = Notes()
    async with connect(server.address, agent="clock") as call:
        turn = ScriptTurn(name="time", samples=read_speech(CLIP))
        (report,) = await ScriptedConversation(call, notes, record=False).run([turn])
    assert report.problem == ""
    assert notes.of(ToolRequest) == [], "the client has nothing to do"
    (run,) = notes.of(ToolRun)
    assert (run.name, run.arguments, run.is_error) == ("get_time", {"city": "Tokyo"}, False)
    return report.answer


async def call_until_refused(server):
    while True:
        async with connect(server.address, agent="clock"):
            await asyncio.sleep(0.5)


async def test_run_serves_a_python_file_and_its_changes_until_it_is_ended(server, command):
    await command.wait_for("The agent clock is served, with 1 function")
    assert await ask(server) == "It's 15:52 in Tokyo."
    await command.wait_for('get_time(city="Tokyo") → {"time": "15:52"}')
    command.source.write_text(CLOCK.replace("15:52", "16:07"))
    await command.wait_for("clock.py has changed")
    assert await ask(server) == "It's 16:07 in Tokyo."
    assert await command.end(signal.SIGTERM) == 0
    assert list(server.agents.glob("**/clock*")) == []
    async with asyncio.timeout(20):
        with pytest.raises(UnknownAgentError):
            await call_until_refused(server)

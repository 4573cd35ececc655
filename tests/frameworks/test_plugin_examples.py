"""The plugins' examples do what their READMEs say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import wave

import pytest
from pipecat.transports.base_transport import BaseTransport
from pipecat_call import Caller, Listener
from recordings import RATE, ROOT, Microphone

CLIENTS = ROOT / "clients"
QUESTION = ROOT / "tests" / "data" / "conversation" / "02-weather.wav"


def load(path, monkeypatch, server):
    monkeypatch.setenv("PARLEY_SERVER", server)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("package", ["pipecat-parley", "livekit-plugins-parley"])
async def test_a_recorded_question_is_answered(package, triton, tmp_path):
    answer = tmp_path / "answer.wav"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CLIENTS / package / "examples" / "from_file.py"),
        str(QUESTION),
        str(answer),
        env={"PARLEY_SERVER": triton, "PATH": ""},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0
    assert b"you: what's the weather in paris\n" in said
    with wave.open(str(answer)) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert file.getnframes() > 12_000


class Room(BaseTransport):
    """Somebody who says hello and leaves when there was an answer."""

    def __init__(self):
        super().__init__()
        self.microphone = Microphone()
        self._input, self._output = Caller(self.microphone), Listener()
        self._register_event_handler("on_client_disconnected")

    def input(self):
        return self._input

    def output(self):
        return self._output

    async def visit(self):
        self.microphone.say("01-hello")
        async with asyncio.timeout(30):
            while len(self._output.heard) < RATE:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.05)
        await self._call_event_handler("on_client_disconnected", None)


async def test_the_pipecat_agent_answers(triton, monkeypatch):
    agent = load(CLIENTS / "pipecat-parley" / "examples" / "agent.py", monkeypatch, triton)
    room = Room()
    async with asyncio.timeout(60):
        await asyncio.gather(agent.run_agent(room, handle_sigint=False), room.visit())


async def test_the_livekit_agent_answers(triton, monkeypatch):
    agent = load(CLIENTS / "livekit-plugins-parley" / "examples" / "agent.py", monkeypatch, triton)
    session = agent.make_session()
    try:
        await session.start(agent.Assistant())
        result = await session.run(user_input="what's the weather in paris")
        result.expect.next_event().is_function_call(name="get_weather", arguments={"city": "Paris"})
        output = result.expect.next_event().is_function_call_output()
        assert json.loads(output.event().item.output) == {"temperature": 8, "sky": "foggy"}
        message = result.expect.next_event().is_message(role="assistant")
        assert message.event().item.text_content == "It's 8 degrees and foggy in Paris."
    finally:
        await session.aclose()
        for model in (session.stt, session.llm, session.tts):
            await model.aclose()

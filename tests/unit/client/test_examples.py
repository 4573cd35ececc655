"""The examples run as they are, against an agent that is not there."""

from __future__ import annotations

import asyncio
import runpy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fake_agent import FakeAgent, serve

import parley_client
from parley import protocol
from parley_client import NO_RETRY, ToolTable, connect
from parley_client.script import load_script
from parley_client.tools import load_tools

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Run the example with a recording, against an agent that behaves as told."""
    soundfile.write(tmp_path / "question.wav", np.full((4_410, 2), 900, np.int16), 44_100)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, agent=None):
        monkeypatch.setattr(
            parley_client, "connect", partial(connect, transport=FakeAgent(agent or serve), retry=NO_RETRY)
        )
        monkeypatch.setattr(sys, "argv", ["ten_lines.py", *arguments])
        runpy.run_path(str(EXAMPLES / "ten_lines.py"), run_name="__main__")

    return run


def test_ten_lines_write_the_answer(ask):
    heard = []

    async def answers(stream):
        def on_frame(frame):
            heard.append(frame.audio)
            if len(heard) == 2:
                event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=3)
                stream.say(event, np.array([1, 2, 3], np.int16))
                stream.say(protocol.TurnMetrics(turn=1))

        await serve(stream, on_frame)

    ask("question.wav", agent=answers)
    assert soundfile.read("answer.wav", dtype="int16")[0].tolist() == [1, 2, 3]
    assert soundfile.info("answer.wav").samplerate == 22_050
    assert sum(map(len, heard)) == 2 * (1_600 + 16_000)  # the clip at 16 kHz mono, and a second of silence


@pytest.mark.parametrize(
    ("arguments", "words"), [([], "question.wav"), (["none.wav"], "error: none.wav: no such file")]
)
def test_the_example_tells_mistakes_in_words(ask, arguments, words):
    with pytest.raises(SystemExit) as caught:
        ask(*arguments)
    assert words in str(caught.value)


def test_the_example_does_not_wait_for_ever_for_an_answer(ask, monkeypatch, tmp_path):
    timeout = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: timeout(0.1 if seconds == 20 else seconds))
    with pytest.raises(SystemExit, match="no answer"):
        ask("question.wav")
    assert not (tmp_path / "answer.wav").exists()


async def test_the_tools_can_be_called():
    table = ToolTable(load_tools(EXAMPLES / "tools.py"))
    assert [tool.name for tool in table.definitions] == ["check_stock", "switch_light"]

    async def ask(name, **arguments):
        answer = await table.answer(protocol.ToolRequest(turn=1, call_id="c", name=name, arguments=arguments))
        return answer.is_error, answer.output

    assert await ask("check_stock", item="coffee") == (False, {"in_stock": 12})
    assert await ask("check_stock", item="gold") == (True, {"error": "gold is not sold here"})
    assert await ask("switch_light", room="kitchen") == (False, {"on": True})
    assert (await ask("switch_light", room="attic"))[0]


def test_the_conversation_can_be_played():
    script = load_script(EXAMPLES / "conversation.toml")
    assert all(turn.text and len(turn.samples) for turn in script.turns)
    assert [turn.text for turn in script.turns if turn.barge_in_ms is not None] == ["stop"]

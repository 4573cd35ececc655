"""The examples run as they are, against an agent that is not there."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import get_args

import httpx
import numpy as np
import pytest
import soundfile
import websockets
from fake_agent import CONNECTED, FakeAgent, serve

import parley_client
from parley import protocol
from parley_client import NO_RETRY, AgentAudio, Reconnected, Reconnecting, ToolTable, connect
from parley_client.cli.script import load_script
from parley_client.events import ServerEvent
from parley_client.tools import load_tools

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_reference_is_up_to_date():
    command = [sys.executable, str(ROOT / "build" / "make_protocol_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


HUNG_UP = 1000
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Run the example with a recording, against an agent with the given behaviour.

    Returns the addresses that were called.
    """
    soundfile.write(tmp_path / "question.wav", np.full((4_410, 2), 900, np.int16), 44_100)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, agent=None):
        called = []

        def dial(server, **options):
            called.append(server)
            return connect(server, transport=FakeAgent(agent or serve), retry=NO_RETRY, **options)

        monkeypatch.setattr(parley_client, "connect", dial)
        monkeypatch.setattr(sys, "argv", ["ten_lines.py", *arguments])
        runpy.run_path(str(EXAMPLES / "ten_lines.py"), run_name="__main__")
        return called

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

    assert ask("question.wav", agent=answers) == ["127.0.0.1:8001"]
    assert soundfile.read("answer.wav", dtype="int16")[0].tolist() == [1, 2, 3]
    assert soundfile.info("answer.wav").samplerate == 22_050
    assert sum(map(len, heard)) == 2 * (1_600 + 16_000)  # the clip at 16 kHz mono, and a second of silence


async def answers_at_once(stream):
    def on_frame(frame):
        if frame.audio:
            event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=1)
            stream.say(event, np.ones(1, np.int16))
            stream.say(protocol.TurnMetrics(turn=1))

    await serve(stream, on_frame)


def test_ten_lines_call_the_server_of_the_second_argument(ask):
    assert ask("question.wav", "10.0.0.2:9001", agent=answers_at_once) == ["10.0.0.2:9001"]


def test_ten_lines_are_few_import_the_client_alone_and_stand_in_the_readme():
    program = (EXAMPLES / "ten_lines.py").read_text()
    assert len(program.splitlines()) <= 25
    imported = set(re.findall(r"^(?:from|import) ([\w.]+)", program, re.MULTILINE))
    assert imported - sys.stdlib_module_names == {"parley_client"}
    assert f"```python\n{program}```\n" in (ROOT / "README.md").read_text()


def test_the_client_exports_every_event_that_a_call_yields():
    exported = {getattr(parley_client, name) for name in parley_client.__all__}
    events = {*get_args(protocol.ServerEvent), AgentAudio} - {protocol.Audio}
    assert events == set(get_args(ServerEvent))
    assert events | {Reconnecting, Reconnected} <= exported


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "missing 1 required .* 'question'"), (["none.wav"], "^error: none.wav: no such file")],
)
def test_the_example_tells_mistakes_in_words(ask, arguments, words):
    with pytest.raises(SystemExit) as caught:
        ask(*arguments)
    assert re.search(words, str(caught.value))


def test_an_answer_that_the_server_cuts_off_is_no_success(ask, tmp_path):
    async def stops(stream):
        await stream.begin()
        event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=1)
        stream.say(event, np.ones(1, np.int16))
        left = 2 * (1_600 + 16_000)
        while left > 0:
            frame = await stream.frames.get()
            left -= len(frame.audio)
            stream.acknowledge(frame)
        stream.close("shutdown")

    with pytest.raises(SystemExit, match=r"^error: the call ended before the answer was complete$"):
        ask("question.wav", agent=stops)
    assert not (tmp_path / "answer.wav").exists()


@pytest.fixture
def stream(tmp_path, monkeypatch):
    """Run the gateway's example; with a URL in place of a gateway."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, url="http://127.0.0.1:1"):
        monkeypatch.setenv("PARLEY_URL", url)
        monkeypatch.setattr(sys, "argv", ["gateway_stream.py", *arguments])
        runpy.run_path(str(EXAMPLES / "gateway_stream.py"), run_name="__main__")

    return run


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_gateways_example_prints_its_usage(stream, capsys, flag):
    with pytest.raises(SystemExit) as ended:
        stream(flag)
    assert not ended.value.code
    assert "gateway_stream.py QUESTION.wav" in capsys.readouterr().out


def test_the_gateways_example_tells_mistakes_in_words(stream):
    soundfile.write("question.wav", np.zeros(160, np.int16), 16_000)
    soundfile.write("other.wav", np.zeros(160, np.int16), 8_000)
    for arguments, words in [
        ([], r"gateway_stream\.py QUESTION\.wav"),
        (["none.wav"], "^error: none.wav: No such file or directory$"),
        (["other.wav"], "^error: other.wav: 16 kHz, mono, 16 bit expected$"),
        (["question.wav"], "^error: http://127.0.0.1:1: .*does `make gateway` run there"),
    ]:
        with pytest.raises(SystemExit, match=words):
            stream(*arguments)


def test_the_gateways_example_repeats_why_it_is_refused(stream, monkeypatch):
    soundfile.write("question.wav", np.zeros(160, np.int16), 16_000)
    refusal = {"error": {"code": "unauthorized", "message": "who are you?", "retryable": False}}
    transport = httpx.MockTransport(lambda _: httpx.Response(401, json=refusal))
    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: client(transport=transport, **options))
    with pytest.raises(SystemExit, match=r"^error: who are you\? \[unauthorized\]$"):
        stream("question.wav")


def test_an_interrupted_example_ends_without_a_trace(stream, monkeypatch):
    async def interrupt_and_wait(_):
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    soundfile.write("question.wav", np.zeros(160, np.int16), 16_000)
    transport = httpx.MockTransport(interrupt_and_wait)
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=transport))
    with pytest.raises(SystemExit) as ended:
        stream("question.wav")
    assert ended.value.code == 130


@pytest.fixture
def gateway(stream, monkeypatch):
    """Run the gateway's example against a gateway that sends these messages and closes with a reason."""

    def run(*messages, code, reason):
        soundfile.write("question.wav", np.zeros(160, np.int16), 16_000)

        async def answer(socket):
            await socket.recv()
            for message in messages:
                await socket.send(message if isinstance(message, bytes) else json.dumps(message))
            while code == HUNG_UP and isinstance(await socket.recv(), bytes):
                pass
            await socket.close(code, reason)

        async def hold():
            async with websockets.serve(answer, "127.0.0.1", 0) as server:
                address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
                created = {"session_id": "s", "stream_url": f"ws://{address}/"}
                transport = httpx.MockTransport(lambda _: httpx.Response(201, json=created))
                monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=transport))
                await asyncio.to_thread(stream, "question.wav")

        asyncio.run(hold())

    return run


ANSWER = ({"type": "response", "text": "Once upon"}, {"type": "audio"}, b"\1\0")


def test_the_gateways_example_writes_a_whole_answer(gateway, tmp_path):
    gateway(*ANSWER, {"type": "metrics"}, code=HUNG_UP, reason="hangup")
    assert soundfile.read(tmp_path / "answer.wav", dtype="int16")[0].tolist() == [1]


def test_the_gateways_example_tells_that_an_answer_was_cut_off(gateway, tmp_path):
    with pytest.raises(SystemExit, match=r"^error: the answer was cut off: going_away$"):
        gateway(*ANSWER, {"type": "closed", "reason": "shutdown"}, code=1001, reason="going_away")
    assert not (tmp_path / "answer.wav").exists()


def test_the_gateways_example_does_not_doubt_a_gateway_that_answers(gateway):
    with pytest.raises(SystemExit, match=r"^error: http://127\.0\.0\.1:1: .*1011 .*call_lost[^`]*$"):
        gateway(code=1011, reason="call_lost")


def test_the_example_does_not_wait_for_ever_for_an_answer(ask, monkeypatch, tmp_path):
    timeout = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: timeout(0.5 if seconds == 60 else seconds))
    with pytest.raises(SystemExit, match="no answer"):
        ask("question.wav")
    assert not (tmp_path / "answer.wav").exists()


def test_the_program_in_the_guide_runs_as_it_is(ask, monkeypatch, capsys):
    """Against an agent that uses its tool, says one sentence, and hangs up."""
    guide = (EXAMPLES.parent / "docs" / "client.md").read_text()
    program = guide.partition("```python\n")[2].partition("```")[0]
    answers = []

    async def talks(stream):
        start = protocol.decode_message((await stream.frames.get()).message)
        assert [tool.name for tool in start.tools] == ["get_weather"]
        stream.say(CONNECTED)
        stream.say(
            protocol.Transcript(utterance=1, text="how is the weather in rome", is_final=True, confidence=1)
        )
        arguments = {"city": "Rome"}
        stream.say(protocol.ToolRequest(turn=1, call_id="c", name="get_weather", arguments=arguments))
        while not answers:
            frame = await stream.frames.get()
            answers.extend([protocol.decode_message(frame.message)] if frame.message else [])
        event = protocol.Audio(
            turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=22_050, text="Sunny."
        )
        stream.say(event, np.ones(22_050, np.int16))
        stream.say(protocol.TurnMetrics(turn=1))
        await stream.wait_for_end()
        stream.close("hangup")

    agent = FakeAgent(talks)
    monkeypatch.setattr(
        parley_client,
        "connect",
        lambda server, **options: connect(server, transport=agent, retry=NO_RETRY, **options),
    )
    monkeypatch.setattr(sys, "argv", ["guide.py", "question.wav"])
    program = compile(program, "docs/client.md", "exec")
    exec(program, {"__name__": "__main__"})  # noqa: S102 - our own text
    assert answers == [protocol.ToolResponse(call_id="c", output={"temperature": 21, "sky": "sunny"})]
    assert capsys.readouterr().out.splitlines() == [
        "you: how is the weather in rome",
        "agent: 1000 ms at 22050 Hz, 'Sunny.'",
    ]
    monkeypatch.setattr(sys, "argv", ["guide.py", "none.wav"])
    with pytest.raises(SystemExit, match=r"error: none\.wav: no such file"):
        exec(program, {"__name__": "__main__"})  # noqa: S102 - our own text


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

"""Talking with a microphone and a loudspeaker that are not there."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fake_agent import FakeAgent

from parley import protocol
from parley.errors import InvalidMessageError
from parley_client import NO_RETRY, CallLostError, ClientError, connect
from parley_client.cli.commands import talk
from parley_client.cli.commands.talk import TYPED_HELP
from parley_client.cli.keyboard import piped_lines
from parley_client.cli.program import build_parser
from parley_client.cli.view import CallView, format_remark, make_console
from parley_client.errors import UsageError

MENU = protocol.KnowledgeSource(file="menu.md", heading="Wine", score=2.0)


@pytest.mark.parametrize(
    ("sources", "late", "line"),
    [
        ([MENU], False, "reads menu.md > Wine"),
        ([], False, "reads nothing of its documents"),
        (
            [MENU],
            True,
            "reads menu.md > Wine, found for earlier words: the search was not over when the answer began",
        ),
        ([], True, "reads nothing of its documents: the search was not over when the answer began"),
    ],
)
def test_line_of_passages_says_what_was_found_and_what_came_too_late(sources, late, line):
    event = protocol.KnowledgeUsed(turn=1, response_id="r", sources=sources, late=late)
    assert format_remark(event) == f"[dim]{line}[/]"


ANSWER = np.full(4000, 9, np.int16)
BLOCK = np.full(512, 7, np.int16).tobytes()


class Microphone:
    """Delivers one block, as soon as it is opened."""

    def __init__(self, *, callback, **_) -> None:
        self.callback = callback

    def start(self):
        self.callback(BLOCK, 512, None, None)

    def close(self):
        pass


class Loudspeaker:
    """Plays a block of 1000 samples on request."""

    last: Loudspeaker

    def __init__(self, *, callback, **_) -> None:
        self.callback, self.heard = callback, []
        Loudspeaker.last = self

    def start(self):
        pass

    def close(self):
        pass

    def play(self):
        data = bytearray(2000)
        self.callback(data, 1000, None, None)
        self.heard.extend(np.frombuffer(data, np.int16))

    async def play_until_heard(self, samples=1):
        while np.count_nonzero(self.heard) < samples:
            self.play()
            await asyncio.sleep(0)


@pytest.fixture
def headset(monkeypatch):
    fake = SimpleNamespace(RawInputStream=Microphone, RawOutputStream=Loudspeaker, PortAudioError=OSError)
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    monkeypatch.setattr(talk, "_POLL_S", 0.001)


def talk_with(behaviour, monkeypatch, *options):
    agent = FakeAgent(behaviour)
    monkeypatch.setattr(
        talk,
        "open_call",
        lambda args, tools, **more: connect(transport=agent, retry=NO_RETRY, tools=tools, **more),
    )
    return talk.run(build_parser().parse_args(["talk", *options]), make_console())


async def test_microphone_is_sent_and_answers_are_played(headset, monkeypatch, capsys):
    marks = []

    async def answers(stream):
        await stream.begin()
        assert (await stream.frames.get()).audio == BLOCK
        stream.say(protocol.Transcript(utterance=1, text="hello", is_final=True, confidence=1))
        event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=4000)
        stream.say(event, ANSWER)
        stream.say(protocol.AgentState(state="speaking"))
        async with asyncio.timeout(5):
            await Loudspeaker.last.play_until_heard()
            marks.append(protocol.decode_message((await stream.frames.get()).message))
        stream.say(protocol.Interrupted(turn=1, response_id="r", played_ms=45, spoken_text="Hi"))
        stream.close("hangup")

    assert await talk_with(answers, monkeypatch) == 0
    # Whatever was still queued when the interruption came is never played.
    Loudspeaker.last.play()
    assert [sample for sample in Loudspeaker.last.heard if sample] == [9] * 1000
    assert marks == [protocol.Playback(response_id="r", played_ms=45)]
    out = capsys.readouterr().out
    assert "hello" in out
    assert "interrupted (words); heard of it: Hi" in out
    assert "call closed: hangup" in out


async def test_a_block_that_comes_while_the_call_is_hung_up_is_dropped():
    async with connect(transport=FakeAgent(), retry=NO_RETRY) as call:
        ending = asyncio.ensure_future(call.hang_up())
        await asyncio.sleep(0)  # hung up, not yet closed
        assert not call.is_over
        talk._offer(call, np.zeros(512, np.int16))
        assert await ending == protocol.Closed(reason="ended")
        talk._offer(call, np.zeros(512, np.int16))


async def test_the_loudspeaker_is_silent_while_paused_and_then_plays_on(headset, monkeypatch):
    async def marks_until(stream, played_ms):
        while protocol.decode_message((await stream.frames.get()).message).played_ms != played_ms:
            pass

    async def pauses(stream):
        await stream.begin()
        await stream.frames.get()
        event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=4000)
        stream.say(event, ANSWER)
        loudspeaker = Loudspeaker.last
        async with asyncio.timeout(5):
            await loudspeaker.play_until_heard()
            await marks_until(stream, 45)
            loudspeaker.play()
            stream.say(protocol.Paused(turn=1, response_id="r", at_ms=5))
            await marks_until(stream, 91)  # nothing but the pause makes it come within 200 ms
            for _ in range(3):
                loudspeaker.play()
            assert loudspeaker.heard[-3000:] == [0] * 3000
            stream.say(protocol.Resumed(turn=1, response_id="r", reason="backchannel", text="mhm"))
            await loudspeaker.play_until_heard(4000)
            await marks_until(stream, 181)
        stream.close("hangup")

    assert await talk_with(pauses, monkeypatch) == 0
    assert np.count_nonzero(Loudspeaker.last.heard) == 4000


async def test_a_lost_call_ends_the_talk(headset, monkeypatch):
    async def breaks(stream):
        await stream.begin()
        stream.end()

    with pytest.raises(CallLostError):
        await talk_with(breaks, monkeypatch)


@pytest.mark.parametrize(
    ("reason", "status"),
    [("ended", 0), ("hangup", 0), ("silence", 0), ("agent_ended", 0), ("failed", 1), ("shutdown", 1)],
)
async def test_the_exit_status_tells_whether_the_call_ended_as_wanted(headset, monkeypatch, reason, status):
    async def closes(stream):
        await stream.begin()
        stream.close(reason)

    assert await talk_with(closes, monkeypatch) == status


async def test_ctrl_c_hangs_up_and_shows_what_was_being_said(headset, monkeypatch, capsys):
    talking_begun = asyncio.Event()

    async def talks(stream):
        await stream.begin()
        stream.say(protocol.ResponseText(turn=1, response_id="r", text="Once upon a"))
        stream.say(protocol.Transcript(utterance=1, text="wait a", is_final=False, confidence=1))
        stream.say(protocol.AgentState(state="speaking"))
        talking_begun.set()
        await stream.wait_for_end()
        stream.close()

    monkeypatch.setattr(CallView, "show", shown := Noting(CallView.show))
    talking = asyncio.create_task(talk_with(talks, monkeypatch))
    async with asyncio.timeout(5):
        await talking_begun.wait()
        await shown.speaking.wait()
        talking.cancel()
        assert await talking == 0
    lines = [" ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == ["you wait a…", "agent cut off; heard of it: nothing"]


class Noting:
    """Calls a method, and tells when it was called with the agent's state."""

    def __init__(self, method):
        self.method, self.speaking = method, asyncio.Event()

    def __get__(self, view, _kind):
        def show(event, at_s):
            self.method(view, event, at_s)
            if isinstance(event, protocol.AgentState):
                self.speaking.set()

        return show


async def test_typed_lines_are_sent_while_talking(headset, terminal, monkeypatch, capsys):
    (keys, _), heard = terminal, []

    async def listens(stream):
        await stream.begin()
        os.write(keys, b"two coffees\n/dtmf 12#\n/say One moment.\n/dtmf x\n/dance\n\n/mute\n/unmute\n")
        while len(heard) < 5:
            frame = await stream.frames.get()
            heard.extend([protocol.decode_message(frame.message)] if frame.message else [])
        os.write(keys, b"\x04")
        await stream.wait_for_end()
        stream.close()

    async with asyncio.timeout(5):
        assert await talk_with(listens, monkeypatch) == 0
    assert heard == [
        protocol.Text(text="two coffees"),
        protocol.Dtmf(digits="12#"),
        protocol.Say(text="One moment."),
        protocol.Control(action="mute"),
        protocol.Control(action="unmute"),
    ]
    lines = [" ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()]
    assert f"You may also type: {TYPED_HELP}." in lines[0]
    assert lines[1:] == [
        "you two coffees (typed)",
        "you /dtmf 12# (typed)",
        "you /say One moment. (typed)",
        "error 'x' in 'x': keys are 0-9, *, # and A-D (invalid_message)",
        f"error '/dance' is not known; type {TYPED_HELP} (invalid_message)",
        "you /mute (typed)",
        "you /unmute (typed)",
    ]


def answering(**answers):
    """A behaviour that answers the texts of a written call one after the other; ``seen`` is what came."""
    seen = []

    async def answer(stream):
        seen.append(protocol.decode_start((await stream.begin()).message))
        turn = 0
        while not (frame := await stream.frames.get()).end:
            seen.append(protocol.decode_message(frame.message))
            if not isinstance(seen[-1], protocol.Text):
                continue
            assert stream.frames.empty(), "the next line waits for the answer"
            turn, text = turn + 1, answers[seen[-1].text]
            stream.say(protocol.ResponseText(turn=turn, response_id=f"r{turn}", text=text))
            await asyncio.sleep(0.02)
            stream.say(protocol.ResponseDone(turn=turn, response_id=f"r{turn}", audio_ms=0))
            stream.say(protocol.TurnMetrics(turn=turn))
        stream.close()

    answer.seen = seen
    return answer


@pytest.fixture
def piped(monkeypatch):
    """The other end of a pipe that is standard input; without sound."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)  # cannot be imported
    read, write = os.pipe()
    with os.fdopen(read) as stdin, os.fdopen(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield pipe


async def test_piped_lines_are_answered_one_after_the_other_without_devices(piped, monkeypatch, capsys):
    agent = answering(hello="Hello!", grüße="Grüße!")
    piped.write("hello\n\n/dance\n/mute\ngrüße".encode())
    piped.close()
    async with asyncio.timeout(10):
        assert await talk_with(agent, monkeypatch, "--text") == 0
    assert agent.seen[0].output == "text"
    assert protocol.Control(action="mute") in agent.seen
    lines = [" ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "you hello (typed)",
        "agent Hello!",
        f"error '/dance' is not known; type {TYPED_HELP} (invalid_message)",
        "you /mute (typed)",
        "you grüße (typed)",
        "agent Grüße!",
    ]


async def test_piped_lines_are_sent_as_they_are(piped, monkeypatch):
    long = "a" * 3_000
    agent = answering(**{"two\tcoffees": "Yes.", long: "No."})
    piped.write(f"two\tcoffees\r\n{long}\n".encode())
    piped.close()
    async with asyncio.timeout(10):
        assert await talk_with(agent, monkeypatch, "--text") == 0
    assert agent.seen[1:] == [protocol.Text(text="two\tcoffees"), protocol.Text(text=long)]


async def test_a_piped_line_without_an_end_is_refused(tmp_path, monkeypatch):
    (tmp_path / "lines").write_bytes(b"hello\n" + b"x" * 300_000)
    with (tmp_path / "lines").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        lines = piped_lines()
        assert await anext(lines) == "hello"
        with pytest.raises(UsageError, match="a line of standard input has more than 262144 bytes"):
            await anext(lines)


async def test_ctrl_d_at_a_terminal_waits_for_no_answer(terminal, monkeypatch):
    async def never_answers(stream):
        await stream.begin()
        assert protocol.decode_message((await stream.frames.get()).message) == protocol.Text(text="hello")
        await stream.wait_for_end()
        stream.close()

    monkeypatch.setattr(talk, "_ANSWER_S", 1.0)
    os.write(terminal[0], b"hello\n\x04")
    async with asyncio.timeout(10):
        assert await talk_with(never_answers, monkeypatch, "--text") == 0


@pytest.mark.parametrize("line", ["/dtmf #", "/dtmf ##"])
async def test_the_end_of_no_keys_is_not_answered(line, piped, monkeypatch):
    monkeypatch.setattr(talk, "_ANSWER_S", 1.0)
    agent = answering(hello="Hello!")
    piped.write(f"{line}\nhello\n".encode())
    piped.close()
    async with asyncio.timeout(10):
        assert await talk_with(agent, monkeypatch, "--text") == 0
    assert agent.seen[1:] == [protocol.Dtmf(digits=line[6:]), protocol.Text(text="hello")]


async def test_a_line_that_the_server_refuses_is_not_answered(piped, monkeypatch, capsys):
    async def refuses(stream):
        await stream.begin()
        await stream.frames.get()
        stream.say(protocol.ErrorEvent.of(InvalidMessageError("text.text has no words")))
        await stream.wait_for_end()
        stream.close()

    monkeypatch.setattr(talk, "_ANSWER_S", 1.0)
    piped.write(b"...\n")
    piped.close()
    async with asyncio.timeout(10):
        assert await talk_with(refuses, monkeypatch, "--text") == 0
    assert "text.text has no words" in capsys.readouterr().out


async def test_written_call_without_an_answer_is_an_error(piped, monkeypatch):
    monkeypatch.setattr(talk, "_ANSWER_S", 0.1)
    piped.write(b"/dtmf 1\n")
    async with asyncio.timeout(10):
        with pytest.raises(ClientError, match="no complete answer within"):
            await talk_with(answering(), monkeypatch, "--text")


async def test_silent_writer_keeps_the_call_until_the_agent_ends_it(piped, monkeypatch):
    alive = []

    async def counts(stream):
        await stream.begin()
        while len(alive) < 3:
            alive.append(protocol.decode_message((await stream.frames.get()).message))
        stream.close("failed")

    monkeypatch.setattr(talk, "_ALIVE_S", 0.01)
    async with asyncio.timeout(10):
        assert await talk_with(counts, monkeypatch, "--text") == 1
    assert alive == [protocol.Control(action="mute")] * 3


async def test_closed_standard_input_cannot_be_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input, which is closed"):
        await anext(piped_lines())

"""Whatever a client sends, and wherever its streams are cut: every message takes effect exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moving_line import WORDS, Line, sound
from virtual_loop import VirtualLoop

from parley import protocol
from parley_client import NO_RETRY, Deadlines, connect
from parley_client.events import Reconnected

CHUNK_S = 0.02
CUTS_S = 3.0
SETTLE_S = 10.0
LIMITS = Deadlines(resume_s=60)
MANUAL = ("speak", "commit", "discard", "remember", "prompt", "mute", "unmute")


MESSAGES = {
    "text": lambda name, _: protocol.Text(text=name),
    "look": lambda name, _: protocol.Text(text=f"look {name}"),
    "remember": lambda name, _: protocol.Remember(role="system", text=name),
    "say": lambda name, _: protocol.Say(text=f"Say {name}.", interruptible=False),
    "respond": lambda name, _: protocol.Respond(system_prompt=name),
    "dtmf": lambda _, number: protocol.Dtmf(digits=f"{number}{number % 7}"),
    "prompt": lambda name, _: protocol.Update(system_prompt=name),
    "voice": lambda _, number: protocol.Update(voice=f"slow-{number}"),
    "bad_voice": lambda *_: protocol.Update(voice="bad"),
    "mute": lambda *_: protocol.Control(action="mute"),
    "unmute": lambda *_: protocol.Control(action="unmute"),
    "interrupt": lambda *_: protocol.Interrupt(),
    "truncate": lambda _, number: protocol.Truncate(response_id="unknown", played_ms=number),
    "unknown": lambda name, _: protocol.ToolResponse(call_id=name),
    "commit": lambda *_: protocol.Commit(),
    "discard": lambda *_: protocol.Discard(),
}


AUTO = ("speak", *(kind for kind in MESSAGES if kind not in ("commit", "discard")))


@dataclass
class Program:
    """What a client does, and what has to come of it."""

    manual: bool
    steps: list[tuple[int, str]]
    sent: list[protocol.ClientMessage] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    muted: bool = False
    events: list[object] = field(default_factory=list)
    tools: int = 0

    async def play(self, line: Line) -> None:
        async def look() -> str:
            """Look."""
            self.tools += 1
            await asyncio.sleep(0.2)
            return "clear"

        detection = "manual" if self.manual else "auto"
        async with connect(
            ["a", "b"],
            transport=line,
            resume=True,
            retry=NO_RETRY,
            tools=[look],
            deadlines=LIMITS,
            turn=protocol.TurnOptions(detection=detection),
            barge_in=protocol.BargeInOptions(enabled=False),
        ) as call:
            call._session._rng.seed(0)
            reader = asyncio.create_task(self._read(call))
            numbers, words = count(), iter(range(len(WORDS)))
            for gap, kind in self.steps:
                await self._record(call, -1, gap)
                if kind == "speak":
                    await self._speak(call, next(words))
                else:
                    self._send(call, kind, next(numbers))
            await self._record(call, -1, round(CUTS_S / CHUNK_S))
            line.stop_cutting()  # a call that is cut while it hangs up goes on nowhere
            await self._record(call, -1, round(SETTLE_S / CHUNK_S))
            self.check(line, call)
            await call.hang_up()
            await reader

    async def _read(self, call) -> None:
        async for event in call:
            self.events.append(event)

    async def _record(self, call, word: int, chunks: int) -> None:
        for _ in range(chunks):
            await call.send_audio(sound(word))
            await asyncio.sleep(CHUNK_S)

    async def _speak(self, call, word: int) -> None:
        if not self.muted:
            self.spoken.append(WORDS[word])
        await self._record(call, word, 15)

    def _send(self, call, kind: str, number: int) -> None:
        message = self._message(kind, number)
        self.sent.append(message)
        call._send(message)
        if kind in ("mute", "unmute"):
            self.muted = kind == "mute"
        elif kind == "commit":
            self.committed += self.spoken
            self.spoken = []
        elif kind == "discard":
            self.spoken = []

    def _message(self, kind: str, number: int) -> protocol.ClientMessage:
        return MESSAGES[kind](f"number {chr(97 + number)}", number)

    # --- what has come of it

    def check(self, line: Line, call) -> None:
        sent, counts = self.sent, Counter(getattr(event, "code", type(event)) for event in self.events)
        for stream in line.streams:
            assert not stream.server.call.outlet.violations
        results = [one for one in line.contained if isinstance(one, protocol.ToolResponse)]
        own = [one for one in results if one.call_id.startswith("call-")]
        assert Counter(map(protocol.encode, line.contained)) == Counter(map(protocol.encode, [*sent, *own]))
        looks = sum(isinstance(one, protocol.Text) and one.text.startswith("look") for one in sent)
        assert len({one.call_id for one in own}) == len(own) <= self.tools <= looks  # one may be cancelled
        assert not call._session._resumption._messages._messages, "messages that no checkpoint contains"

        updates = [one for one in sent if isinstance(one, protocol.Update)]
        bad = [one for one in updates if one.voice == "bad"]
        assert counts[protocol.Updated] == len(updates) - len(bad)
        assert counts["unsupported_voice"] == len(bad)
        assert counts["invalid_message"] == sum(isinstance(one, protocol.Truncate) for one in sent)
        assert counts["unknown_tool_call"] == sum(isinstance(one, protocol.ToolResponse) for one in sent)
        session = line.streams[-1].server.session
        prompts = [one.system_prompt for one in updates if one.system_prompt is not msgspec.UNSET]
        assert session._start.system_prompt == (prompts[-1] if prompts else None)
        voices = [one.voice for one in updates if one.voice not in (msgspec.UNSET, "bad")]
        assert session._start.voice == (voices[-1] if voices else None)

        history = session._conversation.agent_turns.history.messages
        said = " ".join(one.content for one in history if one.role == "user")
        notes = Counter(one.content for one in history if one.role == "system")
        assert notes == Counter(one.text for one in sent if isinstance(one, protocol.Remember))
        self._check_user(said, counts)
        stops = any(isinstance(one, protocol.Interrupt) for one in sent)
        spoken = [one.content for one in history if one.role == "assistant"]
        for text in (one.text for one in sent if isinstance(one, protocol.Say)):
            assert spoken.count(text) <= 1
            assert stops or text in spoken
        assert not counts.keys() & {"internal_error", "audio_dropped"}

    def _check_user(self, said: str, counts: Counter) -> None:
        words = [word for word in said.split() if word in WORDS]
        judged = [
            one.text for one in self.events if isinstance(one, protocol.SpeechIgnored | protocol.Resumed)
        ]
        ignored = " ".join(judged).split()
        expected = self.committed if self.manual else self.spoken
        assert words == [word for word in expected if word not in ignored]
        for text in (one.text for one in self.sent if isinstance(one, protocol.Text)):
            assert said.count(text) == 1
        keys = "".join(one.digits for one in self.sent if isinstance(one, protocol.Dtmf))
        assert "".join(char for char in said if char.isdigit()) == keys
        requested = [
            event
            for event in self.events
            if isinstance(event, protocol.TurnDecision) and event.reason == "requested"
        ]
        assert len(requested) == sum(isinstance(one, protocol.Commit) for one in self.sent)


def steps(kinds: tuple[str, ...]) -> st.SearchStrategy[list[tuple[int, str]]]:
    gaps = st.sampled_from((0, 0, 1, 5, 30, 100))
    return st.lists(st.tuples(gaps, st.sampled_from(kinds)), min_size=1, max_size=8)


PROGRAMS = st.one_of(st.tuples(st.just(False), steps(AUTO)), st.tuples(st.just(True), steps(MANUAL)))


def run(program: Program, line: Line) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(program.play(line))
        assert runner.get_loop().problems == []


# A tool answers while its cancellation is on its way; the next server gets the answer again.
@example((False, [(0, "look"), (20, "text")]), [], 0.1, True)
@example((False, [(0, "look"), (20, "text")]), [32], 0.1, True)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    PROGRAMS,
    st.lists(st.integers(3, 200), max_size=3),
    st.sampled_from((0.0, 0.03)),
    st.booleans(),
)
def test_every_message_takes_effect_once(program, cuts, latency_s, arrives):
    line, played = Line(cuts, latency_s, arrives=arrives), Program(*program)
    run(played, line)
    moves = [event for event in played.events if isinstance(event, Reconnected)]
    assert len(moves) == len(line.streams) - 1

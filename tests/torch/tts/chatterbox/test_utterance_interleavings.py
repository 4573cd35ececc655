"""Whatever happens to an utterance, in whatever order: nothing of it is left over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from chatterbox_fakes import Listener, Rig
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual_loop import VirtualLoop

from parley.errors import (
    InferenceError,
    InvalidMessageError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    SessionNotFoundError,
)

LIMITS = {
    "idle_s": 2.0,
    "tokens_s": 1.0,
    "audio_s": 2.0,
    "push_s": 1.0,
    "stop_s": 0.5,
    "voice_s": 1.0,
    "max_waiting": 4,
    "segment_text": 40,
}
# Longer than all deadlines that can follow each other.
LONGEST_S = 600.0
FAILURES = st.lists(
    st.sampled_from([None, None, None, ModelUnavailableError("gone"), InferenceError("no"), OSError("disk")]),
    max_size=3,
)
TEXTS = st.sampled_from(
    ["Hello there. ", "5 ", "", "... ", "Well, well: it is a longer text, isn't it? Yes. "]
)
ACTIONS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.0005, 0.002, 0.02, 0.3, 1.5, 4.0])),
    st.tuples(st.just("push"), TEXTS),
    st.tuples(st.just("end"), TEXTS),
    st.tuples(st.just("misplaced"), TEXTS),
    st.tuples(st.sampled_from(["stop", "cancel", "close", "again", "hang"]), st.none()),
)


@dataclass(frozen=True)
class World:
    """How the models behave."""

    token_s: float
    step_s: float
    open_s: float
    abort_s: float
    token_failures: list
    audio_failures: list
    room: int
    first: str
    voice_s: float


WORLDS = st.builds(
    World,
    token_s=st.sampled_from([0.0, 0.002, 0.05]),
    step_s=st.sampled_from([0.0, 0.01, 0.4]),
    open_s=st.sampled_from([0.0, 0.01, 5.0]),
    abort_s=st.sampled_from([0.0, 0.1, 5.0]),
    token_failures=FAILURES,
    audio_failures=FAILURES,
    room=st.sampled_from([1, 3, 1_000, 1_000, 1_000]),
    first=TEXTS,
    voice_s=st.sampled_from([0.0, 0.001, 3.0]),
)


@settings(deadline=None, max_examples=400)
@given(WORLDS, st.lists(ACTIONS, max_size=12))
@example(
    World(0.002, 0.0, 0.0, 0.1, [], [], 1_000, "Hello there. ", 0.0),
    [("wait", 0.02), ("cancel", None), ("wait", 0.0), ("cancel", None)],
)
def test_interleavings_leave_no_state(world, actions):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(live(world, actions))
        assert not runner.get_loop().problems, runner.get_loop().problems


async def live(world, actions):
    life = Life(world)
    await asyncio.sleep(0)
    for action, value in actions:
        await getattr(life, action)(value)
    async with asyncio.timeout(LONGEST_S):
        (outcome,) = await asyncio.gather(life.speaking, return_exceptions=True)
        await asyncio.gather(*life.others, return_exceptions=True)
    life.check(outcome, {action for action, _ in actions})


class Life:
    """One utterance, and what happens to it."""

    def __init__(self, world):
        self.world = world
        self.rig = rig = Rig(**LIMITS)
        rig.tokens.token_s, rig.tokens.abort_s = world.token_s, world.abort_s
        rig.audio.step_s, rig.audio.open_s = world.step_s, world.open_s
        rig.tokens.failures.extend(world.token_failures)
        rig.audio.failures.extend(world.audio_failures)
        rig.voices.delay_s = world.voice_s
        self.heard = Listener(world.room)
        self.text = world.first
        self.speaking, _ = rig.begin(world.first, listener=self.heard)
        self.others = []

    async def wait(self, seconds):
        await asyncio.sleep(seconds)

    async def push(self, text, *, final=False):
        try:
            self.rig.more(text, len(self.text), final=final)
        except (InvalidMessageError, OverloadedError, SessionNotFoundError):
            return
        self.text += text

    async def end(self, text):
        await self.push(text, final=True)

    async def misplaced(self, text):
        with pytest.raises((InvalidMessageError, SessionNotFoundError)):
            self.rig.more(text, len(self.text) + 1)

    async def stop(self, _):
        before = len(self.heard.pieces)
        await self.rig.service.stop("a")
        await asyncio.sleep(0.01)
        assert len(self.heard.pieces) == before, "audio after the stop"

    async def cancel(self, _):
        self.speaking.cancel()

    async def close(self, _):
        self.others.append(asyncio.create_task(self.rig.service.close()))

    async def hang(self, _):
        self.rig.tokens.hang = True

    async def again(self, _):
        name = f"b{len(self.others)}"
        self.others.append(asyncio.create_task(self.rig.say("Somebody else.", request_id=name)))

    def check(self, outcome, actions):
        assert outcome is None or isinstance(outcome, ParleyError | OSError | asyncio.CancelledError)
        assert not isinstance(outcome, SessionNotFoundError), "that is for those who push"
        if self.world.open_s > LIMITS["push_s"]:
            self.rig.audio.open.clear()  # it cannot stop what it has not opened
        if self.world.abort_s > LIMITS["stop_s"]:
            self.rig.tokens.running.clear()  # it did not confirm in time
        self.rig.assert_idle()
        marks = [(mark.start_char, mark.at_sample) for mark in self.heard.marks]
        assert marks == sorted(marks)
        if outcome is None and "stop" not in actions and self.world.room == 1_000:
            assert self.heard.words(self.text) == self.text.split()

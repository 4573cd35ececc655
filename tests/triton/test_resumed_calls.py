"""A call that loses its stream within an answer, and goes on in another sequence of the real server."""

from __future__ import annotations

import asyncio
import sys
import time

from test_sessions import Line

from parley.checkpoint import ResponseProgress, Resume
from parley.protocol import (
    Audio,
    Checkpoint,
    Connected,
    ErrorEvent,
    GoAway,
    ResponseDone,
    ResponseText,
    Start,
    Text,
    TurnMetrics,
    encode,
)
from parley.runtime.drain import DRAIN_FILE, cancel_drain

START = Start(greeting="", checkpoints=True)
QUESTION = "tell me a story"


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def text_of(events):
    return "".join(event.text for event in of(events, ResponseText))


def words_of(events):
    return " ".join(event.text for event in of(events, Audio) if event.text).split()


def length_ms(events):
    last = of(events, Audio)[-1]
    return round(last.offset_ms + last.samples / last.sample_rate * 1000)


def resume(events):
    """What a client that has these events sends."""
    checkpoints = of(events, Checkpoint)
    state = checkpoints[-1].state
    done = bool(of(events, ResponseDone))
    progress = ResponseProgress(
        response_id=state.agent.response_id,
        text=text_of(events),
        audio_ms=length_ms(events),
        words=[(event.offset_ms, event.text) for event in of(events, Audio) if event.text],
        played_ms=max(0, length_ms(events) - 400),
        done=done,
    )
    history = next(event.history for event in reversed(checkpoints) if event.history)
    return Resume(state=state, history=history, progress=progress, audio_ms=state.audio_ms)


async def test_an_answer_goes_on_where_it_was(server):
    first = await Line.open(server.endpoints.grpc)
    await first.start(START)
    await first.send("text", encode(Text(text=QUESTION)))
    await first.until(lambda: len(of(first.events(), Audio)) >= 15)
    before = first.events()
    await first.close()

    second = await Line.open(server.endpoints.grpc)
    settings = next(event.settings for event in of(before, Checkpoint) if event.settings)
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    connected = await second.start(Start(**{**fields, "resume": resume(before)}))
    assert connected.resumed
    await second.until(lambda: of(second.events(), TurnMetrics), 60)
    after = second.events()
    assert not of(after, ErrorEvent)
    assert {event.response_id for event in of([*before, *after], Audio)} == {of(before, Audio)[0].response_id}
    assert of(after, Audio)[0].offset_ms == length_ms(before)
    assert abs(of(after, ResponseDone)[0].audio_ms - length_ms(after)) <= 1  # offsets are rounded

    said, cut = words_of(before), len(words_of(before))
    text = text_of(before) + text_of(after)
    spoken = [*said, *words_of(after)]
    # The word that was cut is spoken again.
    assert text.split() in (spoken, [*spoken[: cut - 1], *spoken[cut:]])
    assert len(spoken) > cut + 3

    await second.send("text", encode(Text(text="thank you")))
    await second.until(lambda: len(of(second.events(), TurnMetrics)) == 2, 60)
    history = of(second.events(), Checkpoint)[-1].history
    assert history is None or [one.content for one in history.messages][:3] == [QUESTION, text, "thank you"]
    assert of(second.events(), Audio)[-1].turn == 2
    await second.end()
    await second.close()


async def drain(server, wait_s):
    """The exit status of ``parley drain``."""
    file = str(server.log_path.parent / DRAIN_FILE)
    where = ("--file", file, "--metrics", server.endpoints.metrics, "--deadline", "30", "--wait", str(wait_s))
    command = (sys.executable, "-m", "parley_client.cli.program", "drain", *where)
    return await (await asyncio.create_subprocess_exec(*command)).wait()


async def test_all_instances_are_drained_by_a_file(server):
    file = server.log_path.parent / DRAIN_FILE
    held = [await Line.open(server.endpoints.grpc) for _ in range(4)]
    for line in held:
        await line.start(START)
    try:
        assert await drain(server, 8) == 1
        for line in held:
            assert 25_000 < (await line.wait(GoAway)).time_left_ms <= 30_000
        for _ in range(4):
            refused = await Line.open(server.endpoints.grpc)
            await refused.send("start", encode(START), start=True)
            assert (await refused.wait(ErrorEvent)).code == "shutting_down"
            await refused.close()
        for line in held:
            assert (await line.end()).reason == "ended"
            await line.close()
        assert await drain(server, 60) == 0
    finally:
        cancel_drain(file)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        again = await Line.open(server.endpoints.grpc)
        await again.send("start", encode(START), start=True)
        await again.until(lambda again=again: of(again.events(), (Connected, ErrorEvent)))
        accepted = bool(of(again.events(), Connected))
        await again.close()
        if accepted:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("no session is accepted after the drain")

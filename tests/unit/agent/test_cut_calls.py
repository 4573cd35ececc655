"""A conversation that is cut after any of its events, and goes on in another session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from agent_fakes import FakeOutlet, Sent, now, says
from moving_client import Kept, KnowingChat, MovingCall, of_response, position_ms, says_and_calls

from parley.agent.config import AgentConfig
from parley.protocol import (
    Audio,
    Checkpoint,
    Connected,
    Interrupted,
    ResponseDone,
    SpeechStarted,
    Start,
    Tool,
    Transcript,
    TurnOptions,
)

GREETING = "Hello there, how can I help you?"
WEATHER = "It is sunny and warm in Paris today. You do not need a coat, I think."
STORY = "Once there was a robot, and it lived by the sea. It waved at the boats. The boats waved back."
THANKS = "You are welcome. Goodbye!"
UTTERANCES = (
    (2_500, 3_300, "what's the weather"),
    (12_000, 13_000, "tell me a story"),
    (16_000, 17_000, "thanks that is enough"),
)
END_MS = 22_000
BATCHES = 4


def make_chat() -> KnowingChat:
    answers = {
        "what's the weather": says_and_calls("Let me look. ", "get_weather"),
        "tell me a story": says(STORY),
        "thanks that is enough": says(THANKS),
    }
    return KnowingChat(answers, WEATHER)


def make_call(name: str = "call") -> MovingCall:
    return MovingCall(make_chat(), UTTERANCES, config=AgentConfig(), name=name)


def words(events: Sequence[object], response_id: str) -> list[str]:
    return " ".join(one.text for one in of_response(events, Audio, response_id) if one.text).split()


def check_words(spoken: list[str], text: str, at_cut: int) -> None:
    """Each word once, but the one that was cut perhaps twice."""
    wanted = text.split()
    assert spoken in (wanted, [*wanted[:at_cut], *wanted[at_cut - 1 :]])


def check_offsets(events: Sequence[object], response_id: str) -> None:
    position_ms = 0.0
    for one in of_response(events, Audio, response_id):
        assert abs(one.offset_ms - position_ms) <= 2, f"{response_id} has a gap or a repetition"
        position_ms += one.samples / one.sample_rate * 1000
    for done in of_response(events, ResponseDone, response_id):
        assert abs(done.audio_ms - position_ms) <= 2


def cuts(sent: Sequence[Sent]) -> list[int]:
    """Numbers of events after which a client could go on; of pieces of audio, which are alike, each third."""
    first = next(index for index, one in enumerate(sent, 1) if isinstance(one.event, Checkpoint))
    return [
        count
        for count, one in enumerate(sent, 1)
        if count >= first and (not isinstance(one.event, Audio) or count % 3 == 0)
    ]


async def uncut(start: Start) -> MovingCall:
    call = make_call()
    await call.begin(start)
    await call.until(END_MS)
    return call


def check_whole(before: Sequence[object], outlet: FakeOutlet) -> None:
    """Nothing is missing, and nothing came twice."""
    events = [*before, *outlet.events]
    kept = [one for one in before if isinstance(one, Checkpoint)]
    going_on = kept[-1].state.agent if kept else None
    ids = dict.fromkeys(one.response_id for one in events if isinstance(one, Audio))
    turns = {one.response_id: one.turn for one in events if isinstance(one, Audio)}
    assert sorted(turns.values()) == [1, 2, 3, 4]
    for response_id in ids:
        check_offsets(events, response_id)
        ends = [
            *of_response(events, ResponseDone, response_id),
            *of_response(events, Interrupted, response_id),
        ]
        # A response that the client has, and the checkpoint has not, is over.
        is_over = any(one.turn == turns[response_id] for one in before if isinstance(one, Audio))
        is_over = is_over and (going_on is None or going_on.response_id != response_id)
        assert ends or is_over, "a response has no end"
    texts = {1: GREETING, 2: f"Let me look. {WEATHER}", 4: THANKS}
    for response_id, turn in turns.items():
        if turn in texts:
            check_words(words(events, response_id), texts[turn], len(words(before, response_id)))
    finals = {one.utterance: one.text for one in events if isinstance(one, Transcript) and one.is_final}
    assert finals == {number: text for number, (_, _, text) in enumerate(UTTERANCES, 1)}
    begins = {one.at_ms for one in events if isinstance(one, SpeechStarted)}
    assert begins == {start_ms for start_ms, _, _ in UTTERANCES}
    assert {one.turn for one in events if isinstance(one, Interrupted)} <= {3}


def check_history(history: list[tuple[str, str]], reference: list[tuple[str, str]]) -> None:
    """The same, but that another part of the story may have been played."""
    assert [role for role, _ in history] == [role for role, _ in reference]
    for (role, text), (_, wanted) in zip(history, reference, strict=True):
        if wanted.startswith("Once"):
            assert "".join(STORY.split()).startswith("".join(text.rstrip("…").split()))
        else:
            assert text == wanted, role


@pytest.mark.parametrize("eagerness", ["off", "normal"])
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_a_call_goes_on_after_any_event(eagerness, batch):
    start = Start(
        greeting=GREETING,
        tools=[Tool(name="get_weather")],
        checkpoints=True,
        turn=TurnOptions(eagerness=eagerness),
    )
    reference = await uncut(start)
    assert reference.chat.requests
    check_whole([], reference.outlet)
    assert [one.turn for one in reference.outlet.of(Interrupted)] == [3]
    history, sent = reference.history, list(reference.outlet.sent)
    await reference.end()
    for count in cuts(sent)[batch::BATCHES]:
        try:
            await cut_and_go_on(reference, sent[:count], history)
        except BaseException as error:
            error.add_note(f"cut after event {count}: {sent[count - 1].event}")
            raise


async def cut_and_go_on(reference: MovingCall, sent: Sequence[Sent], history: list[tuple[str, str]]) -> None:
    kept = Kept.of(sent)
    call = make_call("other")
    at_ms = position_ms(sent[-1], reference.began)
    events = [one.event for one in sent]
    passed_s = now() - sent[-1].at
    answered = {
        call_id: at + passed_s for call_id, at in reference.answered.items() if call_id in kept.requests
    }
    await call.go_on(kept, at_ms, answered, tuple(kept.requests))
    connected = call.outlet.of(Connected)[0]
    assert connected.resumed
    assert not connected.greets
    await call.until(END_MS + 3_000 - at_ms)
    check_whole(events, call.outlet)
    check_history(call.history, history)
    assert [call_id.rpartition("-")[0] for call_id in (*kept.requests, *call.ran)] == ["call-2-1"]
    await call.end()

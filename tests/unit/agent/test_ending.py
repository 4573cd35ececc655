"""Calls that the language model ends: `end_call` and `transfer`."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import groupby

import msgspec
import pytest
from agent_fakes import FakeCall, calls, open_call, says
from moving_client import Kept, KnowingChat
from test_tools import FakeServerTools, results

from parley.agent import turns
from parley.agent.ending import END_NOTE
from parley.errors import InferenceError
from parley.protocol import (
    AgentState,
    Audio,
    BargeInOptions,
    Closed,
    EndingOptions,
    Interrupted,
    ResponseDone,
    Say,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    ToolRun,
    Transfer,
    TransferTarget,
    TurnMetrics,
    TurnOptions,
)

DESK = TransferTarget(name="front_desk", to="+493012345678", description="bookings", warm=True)
ON = EndingOptions(end_call=True, transfers=[DESK, TransferTarget(name="kitchen")])
START = Start(ending=ON)
END = ("end_call", {"reason": "the user said goodbye"})
TO_DESK = ("transfer", {"to": "front_desk", "summary": "Wants a table for two."})


def saying(text, *tools):
    """An answer with words and calls."""
    return [*says(text)[:-1], *calls(*tools)]


async def typed(*answers, start=START, text="bye", **options) -> FakeCall:
    call = await open_call(start, answers=answers, **options)
    call.send(Text(text=text))
    return call


async def closing(call) -> Closed:
    closed = await call.wait_for(Closed)
    await call.hang_up()
    call.send(end=True)
    await call.check_nothing_left()
    return closed


def last_request(call):
    return call.chat.requests[-1].messages


async def test_the_call_ends_when_the_goodbye_was_played():
    call = await typed(saying("Goodbye, and thank you.", END))
    closed = await closing(call)
    assert closed == Closed(reason="agent_ended", agent_reason="the user said goodbye")
    assert len(call.chat.requests) == 1
    (done,) = call.outlet.of(ResponseDone)
    first = call.outlet.of(Audio)[0]
    assert call.at_ms(closed) >= call.at_ms(first) + done.audio_ms
    kinds = [type(event) for event in call.outlet.events]
    assert kinds.index(ResponseDone) < kinds.index(TurnMetrics) < kinds.index(Closed)
    (run,) = call.outlet.of(ToolRun)
    assert (run.name, run.is_error) == ("end_call", False)


async def test_a_transfer_names_the_target_and_carries_the_summary():
    call = await typed(saying("I connect you.", TO_DESK))
    assert await closing(call) == Closed(
        reason="transferred",
        transfer=Transfer(
            name="front_desk", to="+493012345678", summary="Wants a table for two.", language="en", warm=True
        ),
    )


async def test_the_tools_are_offered_only_where_they_are_on():
    for ending, offered in (
        (EndingOptions(), []),
        (EndingOptions(end_call=True), ["end_call"]),
        (EndingOptions(transfers=[DESK]), ["transfer"]),
        (ON, ["end_call", "transfer"]),
    ):
        call = await typed(says("Hello."), start=Start(ending=ending))
        await call.end(TurnMetrics)
        tools = call.chat.requests[0].tools
        assert [tool.name for tool in tools] == offered
        assert call.chat.warmed[0].tools == tools
        assert DESK.to not in str(tools)


async def test_a_tool_that_is_off_does_nothing():
    call = await typed(calls(END), says("Anything else?"), start=Start(tools=[Tool(name="book")]))
    await call.end(TurnMetrics)
    assert call.outlet.reason == "ended"
    assert "there is no tool end_call" in results(call)[0]["error"]


async def test_a_clients_tool_of_such_a_name_is_its_own():
    start = Start(tools=[Tool(name="end_call"), Tool(name="book")])
    call = await typed(calls(("end_call", {}), ("book", {})), says("Done."), start=start)
    for count in (1, 2):
        request = await call.wait_for(ToolRequest, count)
        call.send(ToolResponse(call_id=request.call_id, output={"accepted": True}))
    await call.end(TurnMetrics)
    assert call.outlet.reason == "ended"
    assert results(call) == [{"accepted": True}] * 2


async def test_a_model_that_writes_no_words_is_asked_for_a_goodbye():
    call = await typed(calls(END), says("Goodbye."))
    assert (await closing(call)).reason == "agent_ended"
    assert [request.text for request in call.synthesizer.requests] == ["Goodbye."]
    assert call.chat.requests[1].tools == []
    assert "Say goodbye" in last_request(call)[-1].content


@pytest.mark.parametrize("failure", [[], [InferenceError("out of memory")]])
async def test_the_call_ends_also_without_any_words(failure):
    call = await typed(calls(END), [*failure, *calls()])
    assert (await closing(call)).reason == "agent_ended"
    assert call.outlet.codes == []


async def test_words_of_the_user_cancel_the_ending():
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (2_000, 3_000, "wait one more thing"))
    call.chat.answers += [saying("Goodbye, thank you very much for calling us today.", END), says("Yes?")]
    await call.start(START)
    await call.wait_for(Interrupted)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert call.outlet.reason == "ended"
    assert "the call goes on" in results(call)[0]["error"]
    assert [message.role for message in last_request(call)][-1] == "user"


async def test_a_backchannel_does_not_cancel_the_ending():
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (2_000, 2_300, "mhm"))
    call.chat.answers += [saying("Goodbye, thank you very much for calling us today.", END)]
    await call.start(START)
    assert (await closing(call)).reason == "agent_ended"
    assert call.outlet.of(Interrupted) == []


async def test_words_that_may_not_interrupt_are_answered_before_the_call_ends():
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (2_000, 3_000, "wait one more thing"))
    call.chat.answers += [
        saying("Goodbye, thank you very much for calling us today.", END),
        saying("Of course.", END),
    ]
    await call.start(Start(ending=ON, barge_in=BargeInOptions(enabled=False)))
    assert (await closing(call)).reason == "agent_ended"
    assert len(call.chat.requests) == 2
    assert "the call goes on" in results(call)[0]["error"]


@pytest.mark.parametrize("options", [BargeInOptions(enabled=False), BargeInOptions(pause_playback=False)])
async def test_a_user_who_speaks_when_the_call_is_about_to_end_is_heard_out(options):
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (2_000, 6_000, "wait one more thing"))
    goodbye = "Goodbye, and thank you very much for calling."
    call.chat.answers += [saying(goodbye, END), saying("Of course.", END)]
    await call.start(Start(ending=ON, barge_in=options))
    assert (await closing(call)).reason == "agent_ended"
    assert len(call.chat.requests) == 2
    assert "the call goes on" in results(call)[0]["error"]


async def test_a_user_who_speaks_on_and_on_keeps_the_call(monkeypatch):
    monkeypatch.setattr(turns, "_LISTEN_CHECKS", 10)
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (2_000, 30_000, "wait one more thing"))
    call.chat.answers += [saying("Goodbye, and thank you very much for calling.", END)]
    await call.start(Start(ending=ON, barge_in=BargeInOptions(enabled=False)))
    await call.wait_for(TurnMetrics)
    await call.until(20_000)
    assert call.outlet.reason is None
    await call.end()


async def test_text_ends_the_call_at_once():
    call = await typed(saying("Goodbye.", END), start=Start(ending=ON, output="text"))
    assert (await closing(call)).reason == "agent_ended"
    assert call.outlet.of(Audio) == []


async def test_a_prepared_answer_ends_nothing_while_the_user_goes_on():
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (1_600, 2_400, "is what he said"))
    call.chat.answers += [saying("Goodbye.", END), says("I see.")]
    await call.start(Start(ending=ON, turn=TurnOptions(eagerness="normal", complete_ms=1_000)))
    await call.end(TurnMetrics)
    assert call.speculated == ["discarded", "used"]
    assert call.outlet.of(ToolRun) == []
    assert call.outlet.reason == "ended"


async def test_the_first_of_two_endings_counts():
    call = await typed(saying("Goodbye.", END, TO_DESK, END))
    assert (await closing(call)).reason == "agent_ended"
    assert len(call.outlet.of(ToolRun)) == 1


async def test_among_other_tools_it_is_refused_until_their_results_are_read():
    start = Start(ending=ON, tools=[Tool(name="book")])
    call = await typed(saying("I book it.", END, ("book", {})), saying("Done. Goodbye.", END), start=start)
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="booked"))
    assert (await closing(call)).reason == "agent_ended"
    refused, booked = results(call)
    assert "call it alone" in refused["error"]
    assert booked == "booked"


async def test_a_target_that_does_not_exist_is_refused():
    call = await typed(calls(("transfer", {"to": "+4912345678", "summary": ""})), says("I cannot do that."))
    await call.end(TurnMetrics)
    assert call.outlet.reason == "ended"
    assert "invalid arguments for transfer" in results(call)[0]["error"]


async def test_what_was_queued_is_not_spoken_after_the_end():
    call = await typed(saying("Goodbye, thank you for calling.", END))
    await call.wait_for(Audio)
    call.send(Say(text="By the way."))
    assert (await closing(call)).reason == "agent_ended"
    assert len(call.synthesizer.requests) == 1


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (Start(ending=ON, tools=[Tool(name="end_call")]), "the option ending has a tool"),
        (Start(ending=EndingOptions(transfers=[DESK, DESK])), "two targets"),
        (b'{"type":"start","ending":{"transfers":[{"name":"a b"}]}}', "name"),
        (b'{"type":"start","ending":{"transfers":[{"name":"a","to":"112; rm"}]}}', "to"),
        (b'{"type":"start","ending":{"transfers":[{"name":"a","to":"+493012345678\\n"}]}}', "to"),
        (b'{"type":"start","ending":{"transfers":[{"name":"a","to":"sip:a@b;x=<y>"}]}}', "to"),
    ],
)
async def test_wrong_options_are_refused(start, said):
    call = await open_call(start)
    (error,) = call.outlet.of(type(call.outlet.events[0]))
    assert (error.code, call.outlet.reason) == ("invalid_message", "failed")
    assert said in error.message


async def test_a_tool_of_the_server_may_not_have_the_same_name():
    tools = FakeServerTools()
    tools.names = ("end_call",)
    call = FakeCall()
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=tools)
    await call.start(START)
    assert call.outlet.codes == ["invalid_message"]


async def test_a_long_reason_is_cut():
    call = await typed(saying("Goodbye.", ("end_call", {"reason": "x" * 5_000})))
    assert (await closing(call)).agent_reason == "x" * 1_000


async def test_a_hang_up_of_the_user_comes_first():
    call = await typed(saying("Goodbye, thank you for calling.", END))
    await call.wait_for(Audio)
    await asyncio.sleep(0.1)
    await call.end()
    assert call.outlet.reason == "ended"
    assert call.outlet.codes == []


# --- moves --------------------------------------------------------------------------------------


GOODBYE = "Goodbye, and thank you very much for calling."


@pytest.mark.parametrize("first", [saying(GOODBYE, END), calls(END)])
async def test_a_call_that_moves_ends_once_with_the_whole_goodbye(first):
    answers = {"bye": first, END_NOTE: says(GOODBYE)}
    start = Start(ending=ON, checkpoints=True)
    reference = await open_call(start, chat=KnowingChat(answers))
    reference.send(Text(text="bye"))
    await closing(reference)
    sent = reference.outlet.sent
    begun = next(count for count, one in enumerate(sent, 1) if isinstance(one.event, AgentState))
    cuts = [
        count
        for count in range(begun, len(sent))
        if (kept := Kept.of(sent[:count])).state and kept.state.turns
    ]
    assert len(cuts) > 5
    for count in cuts:
        kept = Kept.of(sent[:count])
        call = FakeCall(chat=KnowingChat(answers))
        await call.start(msgspec.structs.replace(kept.settings, resume=kept.resume()))
        closed = await closing(call)
        assert closed == sent[-1].event, f"cut after event {count}: {sent[count - 1].event}"
        events = [*(one.event for one in sent[:count]), *call.outlet.events]
        spoken = " ".join(event.text for event in events if isinstance(event, Audio) and event.text)
        # The word in which the call was cut may be spoken twice.
        assert [word for word, _ in groupby(spoken.split())] == GOODBYE.split()

"""Summaries in the background."""

from __future__ import annotations

import asyncio

import pytest

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.summarization import Summarizer
from parley.chat import ChatMessage
from parley.errors import InferenceError, ModelLoadingError
from parley.llm.history import History
from parley.llm.messages import Completed, Priority, TextDelta
from parley.protocol import Tool
from parley.runtime.parameters import Parameters

LIMITS = AgentDeadlines(summary_s=5.0)
TOOLS = [Tool(name="get_time")]


class Writer:
    """Writes a given text after a while."""

    def __init__(self):
        self.text = "They said hello."
        self.failure = None
        self.takes_s = 1.0
        self.asked = []
        self.running = 0
        self.most = 0
        self.aborted = []

    async def generate(self, request):
        self.asked.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.takes_s)
            if self.failure:
                raise self.failure
            yield TextDelta(text=self.text[:5])
            yield TextDelta(text=self.text[5:])
            yield Completed(finish_reason="stop")
        finally:
            self.running -= 1

    async def abort(self, request_id):
        self.aborted.append(request_id)

    @property
    def summaries(self):
        return [request for request in self.asked if request.priority is Priority.BACKGROUND]


class Conversation:
    def __init__(self):
        self.writer = Writer()
        self.history = History("be brief", 400, TOOLS)
        self.summariser = Summarizer(self.writer, self.history, "call", LIMITS)
        self.count = 0

    def exchange(self):
        self.count += 1
        self.history.add_user(f"question {self.count} " + "x" * 60)
        self.history.extend([ChatMessage(role="assistant", content=f"answer {self.count}")])
        self.summariser.on_history_changed()

    def grow(self):
        """Until a summary is begun."""
        while not self.writer.running and self.history.plan_summary() is None:
            self.exchange()

    @property
    def system(self):
        return self.history.messages()[0].content


async def test_a_long_conversation_is_summarised_and_its_new_beginning_read():
    call = Conversation()
    call.grow()
    await asyncio.sleep(10)
    assert call.system.endswith("They said hello.")
    summary, warmed = call.writer.asked
    assert summary.request_id == "call-summary1"
    assert (warmed.priority, warmed.tools) == (Priority.WARM_UP, TOOLS)
    assert warmed.messages[:-1] == call.history.messages()
    assert call.summariser.close() == set()


async def test_summaries_are_made_one_at_a_time():
    call = Conversation()
    call.grow()
    for _ in range(3):
        call.exchange()
        await asyncio.sleep(0.1)
    await asyncio.sleep(10)
    assert len(call.writer.summaries) == 1
    assert call.writer.most == 1
    assert call.history.messages()[-1].content == f"answer {call.count}"


async def test_failed_summary_is_retried_only_with_a_longer_history(caplog):
    call = Conversation()
    call.writer.failure = InferenceError("broken")
    call.grow()
    await asyncio.sleep(10)
    call.summariser.on_history_changed()
    await asyncio.sleep(10)
    assert len(call.writer.summaries) == 1
    assert call.system == "be brief"
    assert "broken" in caplog.text
    call.writer.failure = None
    call.exchange()
    await asyncio.sleep(10)
    assert len(call.writer.summaries) == 2
    assert call.system.endswith("They said hello.")


async def test_late_summary_is_stopped_and_the_oldest_messages_dropped(caplog):
    call = Conversation()
    call.writer.takes_s = 60
    call.grow()
    await asyncio.sleep(6)
    assert call.writer.running == 0
    assert call.writer.aborted == ["call-summary1"]
    assert "did not answer within 5 s" in caplog.text
    for _ in range(10):
        call.history.add_user("y" * 100)
        call.history.extend([ChatMessage(role="assistant", content="z")])
    assert call.system == "be brief"
    assert len(call.history.messages()) < 20


async def test_summary_that_comes_too_late_changes_nothing():
    call = Conversation()
    call.grow()
    await asyncio.sleep(0.5)
    call.history.forget_oldest()
    before = call.history.messages()
    await asyncio.sleep(10)
    assert call.history.messages() == before


@pytest.mark.parametrize("failure", [ZeroDivisionError("a bug")])
async def test_unexpected_failure_is_logged(failure, caplog):
    call = Conversation()
    call.writer.failure = failure
    call.grow()
    await asyncio.sleep(10)
    assert "a bug" in caplog.text
    assert call.system == "be brief"


async def test_closing_stops_it():
    call = Conversation()
    call.writer.takes_s = 3_600
    call.grow()
    await asyncio.sleep(0.5)
    ending = call.summariser.close()
    await asyncio.wait(ending)
    assert len(ending) == 1
    assert call.writer.running == 0
    assert call.writer.aborted == ["call-summary1"]
    call.exchange()
    await asyncio.sleep(1)
    assert len(call.writer.asked) == 1


@pytest.mark.parametrize(("values", "history"), [({}, "drop"), ({"history": "summarise"}, "summarise")])
def test_summaries_are_a_setting(values, history):
    parameters = Parameters("voice_agent", values, environment={})
    assert AgentConfig.from_parameters(parameters).history == history
    with pytest.raises(ModelLoadingError):
        AgentConfig.from_parameters(Parameters("voice_agent", {"history": "perhaps"}, environment={}))

"""A conversation that goes on while the models behind it are taken away and come back."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from functools import partial

import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from google.protobuf import json_format
from leftovers import AGENT_MODELS, ANY_PORTS, leftovers
from tritonclient.utils import InferenceServerException

from parley.errors import from_wire
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.protocol import (
    AgentState,
    Closed,
    ErrorEvent,
    ResponseDone,
    ResponseText,
    ToolRequest,
    Transcript,
    TurnDecision,
    TurnOptions,
)
from parley_client import connect
from parley_client.audio.files import read_speech
from parley_client.audio.microphone import PacedMicrophone
from parley_client.cli.demo_tools import DEMO_TOOLS

QUESTION = ROOT / "tests/data/conversation/08-time.wav"
ANSWER_S = 15.0
ATTEMPTS = 3  # on a busy machine a pause may be taken for the end of a question
SETTLED_S = 1.0
RELOAD_S = 120.0  # on a busy machine
GONE = {"model_unavailable", "inference_failed", "deadline_exceeded"}

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


class Administrator:
    """Takes models away and brings them back."""

    def __init__(self, server):
        self._server = server
        self._client = triton.InferenceServerClient(server.endpoints.grpc)

    async def unload(self, *models):
        async with asyncio.timeout(RELOAD_S):
            for model in models:
                await asyncio.to_thread(self._server.control.unload, model)
            for model in models:
                # Triton has no event for its end.
                while await self._is_ready(model):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    def kill(self, *models):
        """End their processes; they have to be unloaded before they can be loaded again."""
        for process in self._server.usage():
            if process.name.startswith(models):
                os.kill(process.pid, signal.SIGKILL)

    async def load(self, *models):
        async with asyncio.timeout(RELOAD_S):
            for model in models:
                config = json_format.MessageToJson(self._server.model_config(model))
                await asyncio.to_thread(self._server.control.load, model, config, RELOAD_S)
            for model in models:
                assert await self._is_ready(model)

    async def close(self):
        await self._client.close()

    async def _is_ready(self, model):
        try:
            return await self._client.is_model_ready(model)
        except InferenceServerException:
            return False


class Caller:
    """Asks one question on request, and records all events."""

    def __init__(self, call):
        self._call = call
        self._microphone = PacedMicrophone(call.send_audio)
        self._question = read_speech(QUESTION)
        self._heard = asyncio.Condition()
        self.events = []

    @asynccontextmanager
    async def talking(self):
        self._microphone.restart()
        tasks = [asyncio.create_task(self._microphone.run()), asyncio.create_task(self._listen())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self):
        async for event in self._call:
            async with self._heard:
                self.events.append(event)
                self._heard.notify_all()

    async def ask(self):
        """Ask once nothing goes on any more; return where the events that follow begin."""
        await self.settle()
        mark = len(self.events)
        async with asyncio.timeout(ANSWER_S):
            await self._microphone.speak(self._question).ended.wait()
        return mark

    async def ask_until(self, happened, mark=None):
        """Ask, and again while ``happened`` says no of the events since ``mark``; return where they begin."""
        mark = len(self.events) if mark is None else mark
        for _ in range(ATTEMPTS):
            await self.ask()
            if await self.until(lambda: happened(mark), ANSWER_S):
                return mark
        raise AssertionError("\n".join(map(repr, self.events[mark:])))

    async def settle(self):
        """Wait until the agent listens, and has done so for a moment."""
        async with asyncio.timeout(2 * ANSWER_S):
            assert await self.until(self.idle, ANSWER_S)
            while await self.until(partial(self._changed_since, len(self.of(AgentState))), SETTLED_S):
                assert await self.until(self.idle, ANSWER_S)

    async def until(self, happened, limit_s):
        """Wait until ``happened``; whether it has."""
        try:
            async with asyncio.timeout(limit_s), self._heard:
                await self._heard.wait_for(happened)
        except TimeoutError:
            return False
        return True

    def _changed_since(self, count):
        return len(self.of(AgentState)) > count

    def of(self, kind, mark=0):
        return [event for event in self.events[mark:] if isinstance(event, kind)]

    def errors(self, mark):
        return {event.code for event in self.of(ErrorEvent, mark)}

    def answered(self, mark):
        """Whether the question was answered in full, and aloud."""
        texts = {}
        for event in self.of(ResponseText, mark):
            texts[event.response_id] = texts.get(event.response_id, "") + event.text
        spoken = [event.response_id for event in self.of(ResponseDone, mark) if event.audio_ms]
        return any("Tokyo" in texts.get(response, "") for response in spoken)

    def idle(self):
        states = self.of(AgentState)
        return bool(states) and states[-1].state == "listening"


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """A server of its own, whose models are taken away."""
    state = tmp_path_factory.mktemp("restarts")
    running = EmbeddedServer(
        ServerOptions(load_models=AGENT_MODELS, state_dir=state, exit_timeout_s=8, **ANY_PORTS),
        limits=None,  # what is taken away stays away
    )
    with running:
        session = running.pid
        yield running
    assert leftovers(session, running.shm_prefix) == ([], [])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def administrator(restarted):
    own = Administrator(restarted)
    yield own
    await own.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(restarted):
    """One conversation for all tests: it is the one that has to survive."""
    turn = TurnOptions(eagerness="normal")
    async with (
        connect(restarted.endpoints.grpc, tools=DEMO_TOOLS, turn=turn) as call,
        Caller(call).talking() as own,
    ):
        assert await own.until(own.idle, ANSWER_S)
        yield own


async def test_the_question_is_answered_while_all_is_well(caller):
    mark = await caller.ask_until(caller.answered)
    assert {"city": "Tokyo"} in [tool.arguments for tool in caller.of(ToolRequest, mark)]
    assert caller.errors(mark) == set()


# The models that are gone, and codes of which one is reported; none: there need be no error.
OUTAGES = {
    "nemotron_streaming": (("nemotron_streaming",), GONE),
    "parakeet_transcribe": (
        ("parakeet_transcribe", "parakeet_encoder", "parakeet_decoder"),
        {"asr_fallback"},
    ),
    "smart_turn": (("smart_turn",), set()),
    "qwen3": (("qwen3",), GONE),
    "espeak": (("espeak",), GONE),
}


@pytest.mark.parametrize(("models", "codes"), OUTAGES.values(), ids=OUTAGES)
async def test_the_conversation_goes_on_when_a_model_was_unloaded(caller, administrator, models, codes):
    await caller.settle()
    mark = len(caller.events)
    await administrator.unload(*models)
    await expect_outage(caller, administrator, models, codes, mark)
    if "smart_turn" in models:
        assert "not_scored" in {event.reason for event in caller.of(TurnDecision, mark)}


@pytest.mark.parametrize("model", ["nemotron_streaming", "espeak"])
async def test_the_conversation_goes_on_when_a_process_was_killed(caller, administrator, model):
    await caller.settle()
    mark = len(caller.events)
    administrator.kill(model)
    await expect_outage(caller, administrator, (model,), OUTAGES[model][1], mark)


async def expect_outage(caller, administrator, models, codes, mark):
    """Ask without the models, bring them back, and ask again.

    ``mark``: where the events of all this begin, before the models went: an error is sent once, and may come
    while they go.
    """
    try:
        happened = (lambda mark: codes & caller.errors(mark)) if codes else caller.answered
        await caller.ask_until(happened, mark if codes else None)
    finally:
        await administrator.unload(*models)
        await administrator.load(*reversed(models))
    again = await caller.ask_until(caller.answered)
    assert any(event.is_final and event.text for event in caller.of(Transcript, again))
    assert caller.of(Closed) == []
    for event in caller.of(ErrorEvent, mark):
        # Each code is documented, and nothing was wrong with what the caller did.
        assert type(from_wire(f"{event.code}: {event.message}")).code == event.code, event
        assert event.retryable or event.code == "asr_fallback", event

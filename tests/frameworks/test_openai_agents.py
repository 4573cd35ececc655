"""The OpenAI Agents SDK's realtime session talks to the agent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner
from realtime_call import INSTRUCTIONS, WEATHER, upsampled, words
from recordings import Microphone, Notes


@function_tool
def get_weather(city: str, day: str | None = None) -> dict[str, int | str]:
    """Get the weather in a city.

    Args:
        city: The name of the city.
        day: The day, if it is not now.
    """
    return WEATHER


class Call:
    """A running session, and who calls it."""

    def __init__(self, session):
        self.session = session
        self.microphone = Microphone()
        self.notes = Notes()

    async def speak(self):
        async for piece in upsampled(self.microphone.frames()):
            if piece:
                await self.session.send_audio(piece)

    async def listen(self):
        async for event in self.session:
            self.notes.add(event)

    async def wait(self, kind, since=0):
        return await self.notes.wait(lambda event: event.type == kind, since=since)

    async def wait_said(self, *expected, since=0):
        """Until the newest answer contains these words."""
        await self.notes.wait(
            lambda event: event.type == "history_updated" and set(expected) <= set(words(_said(event))),
            since=since,
        )


def _said(event):
    """The last answer."""
    answers = [
        part.transcript or ""
        for item in event.history
        if item.type == "message" and item.role == "assistant"
        for part in item.content
        if part.type == "audio"
    ]
    return answers[-1] if answers else ""


@asynccontextmanager
async def calling(gateway):
    agent = RealtimeAgent(name="Parley", instructions=INSTRUCTIONS, tools=[get_weather])
    runner = RealtimeRunner(agent, config={"tracing_disabled": True})
    url = f"{gateway.replace('http', 'ws', 1)}/v1/realtime?model=gpt-realtime"
    async with await runner.run(model_config={"api_key": "none", "url": url}) as session:
        call = Call(session)
        tasks = [asyncio.create_task(call.speak()), asyncio.create_task(call.listen())]
        try:
            yield call
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_holds_a_conversation(gateway):
    async with calling(gateway) as call:
        call.microphone.say("02-weather")
        run = await call.wait("tool_end")
        assert run.output == str(WEATHER) or "foggy" in str(run.output)
        await call.wait_said("8", "foggy")
        await call.wait("audio_end")

        since = len(call.notes.events)
        call.microphone.say("06-story")
        await call.wait("audio", since)
        await asyncio.sleep(2.0)
        since = len(call.notes.events)
        call.microphone.say("07-stop")
        await call.wait("audio_interrupted", since)
        await call.wait_said("okay", since=since)
        assert not [event for event in call.notes.events if event.type == "error"]

"""A caller of OpenAI's Realtime protocol: a microphone, a function, and notes of all events."""

from __future__ import annotations

import base64
import json
import time

import numpy as np
import soxr
from recordings import RATE, Microphone, Notes

PCM_RATE = 24_000
INSTRUCTIONS = "You are a friendly voice assistant."
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The name of the city."},
                "day": {"type": ["string", "null"], "description": "The day, if it is not now."},
            },
            "required": ["city"],
        },
    },
]
WEATHER = {"temperature": 8, "sky": "foggy"}


def upsampled(pieces):
    """Pieces of 16 kHz PCM16 at 24 kHz, one by one."""
    stream = soxr.ResampleStream(RATE, PCM_RATE, 1, dtype="int16")

    async def convert():
        async for piece in pieces:
            yield stream.resample_chunk(np.frombuffer(piece, "<i2")).tobytes()

    return convert()


class Caller:
    """One side of a session; ``send`` takes a client event as a dict."""

    def __init__(self, send):
        self.send = send
        self.microphone = Microphone()
        self.notes = Notes()
        self.began = time.monotonic()

    async def speak(self):
        """Let the microphone be heard, until cancelled."""
        async for piece in upsampled(self.microphone.frames()):
            if piece:
                await self.send(
                    {"type": "input_audio_buffer.append", "audio": base64.b64encode(piece).decode()}
                )

    def note(self, event):
        """An event of the server's, as a dict."""
        self.notes.add(event)

    @property
    def count(self):
        """Events so far."""
        return len(self.notes.events)

    async def wait(self, kind, *, since=0, timeout_s=20.0, **fields):
        """The first event of this type with these fields."""

        def matches(event):
            return event["type"] == kind and all(event.get(name) == value for name, value in fields.items())

        return await self.notes.wait(matches, since=since, timeout_s=timeout_s)

    async def wait_done(self, *, since=0, status="completed", timeout_s=20.0):
        """The next response that is over, whichever way; it has to be this one."""
        event = await self.wait("response.done", since=since, timeout_s=timeout_s)
        assert event["response"]["status"] == status, event
        return event["response"]

    async def type(self, text, **options):
        """Write something, and ask for an answer."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.send({"type": "conversation.item.create", "item": item})
        await self.send({"type": "response.create", "response": options})

    async def answer_call(self, response):
        """Run the functions that a response asks for, and go on."""
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        for call in calls:
            output = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": json.dumps(WEATHER),
            }
            await self.send({"type": "conversation.item.create", "item": output})
        await self.send({"type": "response.create"})
        return calls


def spoken(response):
    """What a response says."""
    return " ".join(
        part.get("transcript") or part.get("text") or ""
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def words(text):
    """The words of a text, without their punctuation."""
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ").split()

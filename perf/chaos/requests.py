"""Requests that are no calls: each has to end, with its own answer or with an error."""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np
import soundfile

from chaos.deployment import Deployment
from chaos.evidence import Speech
from chaos.words import Part
from parley.timeouts import hold_task
from parley_client.audio.files import resample

BOUND_S = 45.0
"""The gateway waits 20 s for a transcript and for speech, and 30 s for a language model."""
_EVERY_S = 1.0
_RATE, _SPEECH_RATE = 16_000, 24_000
_TRANSCRIPTION, _SPEECH, _CHAT = "transcription", "speech", "chat"
_KINDS = (_TRANSCRIPTION, _SPEECH, _CHAT)
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
        },
    },
}


@dataclass
class Request:
    """One request."""

    where: str
    """The gateway."""
    kind: str
    part: Part
    began: float
    """Seconds of :func:`time.time`."""
    took_s: float = 0.0
    end: str = ""
    """``ok``, the status and code of an error, or that of the connection; empty: it did not end in time."""
    text: str = ""
    """That came back."""
    speech: Speech | None = None


class Requests:
    """Sends one request after the other, to both gateways by turns, without waiting for the answers."""

    def __init__(self, deployment: Deployment, parts: Sequence[Part]) -> None:
        self._deployment = deployment
        self._parts = parts
        self.sent: list[Request] = []

    async def run(self) -> None:
        """Send until it is cancelled; then wait for those under way, each within its bound."""
        running: set[asyncio.Task[None]] = set()
        try:
            for number in itertools.count():
                places = tuple(self._deployment.urls)
                where = places[number % len(places)]
                kind = _KINDS[number // len(places) % len(_KINDS)]
                request = Request(where, kind, self._parts[number % len(self._parts)], time.time())
                self.sent.append(request)
                hold_task(running, self._send(request), f"request {number}")
                await asyncio.sleep(_EVERY_S)
        finally:
            if running:
                await asyncio.wait(running)

    async def _send(self, request: Request) -> None:
        try:
            async with (
                asyncio.timeout(BOUND_S),
                httpx.AsyncClient(
                    base_url=self._deployment.urls[request.where],
                    verify=self._deployment.trust(request.where),
                    timeout=2 * BOUND_S,
                    trust_env=False,
                ) as client,
            ):
                request.end = await _ask(client, request)
        except TimeoutError:
            pass  # it has no end
        except httpx.HTTPError as error:
            request.end = type(error).__name__
        request.took_s = time.time() - request.began


async def _ask(client: httpx.AsyncClient, request: Request) -> str:
    part = request.part
    match request.kind:
        case "transcription":
            content = io.BytesIO()
            soundfile.write(content, part.question, _RATE, format="WAV")
            answer = await client.post(
                "/v1/audio/transcriptions",
                files={"file": ("question.wav", content.getvalue())},
                data={"model": "whisper-1"},
            )
        case "speech":
            body = {
                "model": "tts-1",
                "voice": "alloy",
                "response_format": "pcm",
                "input": f"The weather in {part.city}.",
            }
            answer = await client.post("/v1/audio/speech", json=body)
        case _:
            message = {"role": "user", "content": f"what's the weather in {part.city}"}
            answer = await client.post(
                "/v1/chat/completions",
                json={"model": "qwen3", "messages": [message], "max_tokens": 32, "tools": [_WEATHER]},
            )
    if not answer.is_success:
        return _describe(answer)
    if request.kind == _SPEECH:
        samples = np.frombuffer(answer.content, "<i2")
        request.speech = part, resample(samples, _SPEECH_RATE, _RATE)
    else:
        request.text = answer.text
    return "ok"


def _describe(answer: httpx.Response) -> str:
    try:
        error = answer.json()["error"]
        return f"{answer.status_code} {error['code'] or error['type']}"
    except (ValueError, KeyError, TypeError):
        return str(answer.status_code)

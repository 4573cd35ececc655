"""Twilio's webhook for a call and its bidirectional media stream, as Twilio speaks them to a server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from parley_testing.conform.checks import Checks
from parley_testing.conform.connection import (
    CheckedSocket,
    FailedError,
    RefusedByServerError,
    Samples,
    Target,
    expect,
    expect_speech,
    to_base64,
    to_mulaw,
)

CHECKS = Checks()
_STREAM = "MZ00000000000000000000000000000001"
_CALL = "CA00000000000000000000000000000001"
_FORMAT = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
_CLOSED = (1000, 1001, 1005, 1006)
"""Twilio takes any of them for the end of the stream."""


_FORM = {
    "CallSid": _CALL,
    "CallStatus": "ringing",
    "Direction": "inbound",
    "From": "+493011111111",
    "To": "+493022222222",
}
_STREAM_URL = re.compile(r"<Stream\b[^>]*\burl=\"([^\"]+)\"")
_PARAMETER = re.compile(r"<Parameter name=\"([^\"]+)\" value=\"([^\"]*)\"")


def sign(token: str, url: str, form: Mapping[str, str]) -> dict[str, str]:
    """The header with Twilio's signature of a request, by the account's auth token."""
    text = url + "".join(name + value for name, value in sorted(form.items()))
    digest = hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()
    return {"X-Twilio-Signature": base64.b64encode(digest).decode()}


async def _ask(target: Target, token: str) -> str:
    """The TwiML that answers the webhook for a call."""
    parts = urlsplit(target.url)
    url = f"{target.public_url}{parts.path}" if target.public_url else target.url
    form = _FORM | {"AccountSid": target.account}
    answer = await target.request("POST", "", data=form, headers=sign(token, url, form))
    return answer.text


async def _find_stream(target: Target) -> tuple[str, dict[str, str], dict[str, str]]:
    """The address of the stream, its headers and its parameters."""
    if target.url.startswith("ws"):
        return target.url, sign(target.key, target.url, {}), {}
    twiml = await _ask(target, target.key)
    found = _STREAM_URL.search(twiml)
    expect(found, f"there is no <Stream> in {twiml[:200]}")
    assert found is not None
    url = html.unescape(found[1])
    parameters = {html.unescape(name): html.unescape(value) for name, value in _PARAMETER.findall(twiml)}
    parts = urlsplit(target.url)
    near = f"{parts.scheme}://{parts.netloc}{urlsplit(url).path}" if target.public_url else url
    return near, sign(target.key, url, {}), parameters


@asynccontextmanager
async def _open(target: Target) -> AsyncIterator[CheckedSocket]:
    """A stream that has begun."""
    url, headers, parameters = await _find_stream(target)
    async with target.connect(
        url, name_of=lambda event: str(event.get("event", "")), headers=headers
    ) as peer:
        await peer.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        start = {
            "accountSid": target.account,
            "streamSid": _STREAM,
            "callSid": _CALL,
            "tracks": ["inbound"],
            "mediaFormat": _FORMAT,
            "customParameters": parameters,
        }
        await peer.send({"event": "start", "sequenceNumber": "1", "streamSid": _STREAM, "start": start})
        yield peer


def _microphone(peer: CheckedSocket, speech: Samples) -> Any:
    async def send(samples: Samples) -> None:
        media = {"track": "inbound", "payload": to_base64(to_mulaw(samples))}
        await peer.send({"event": "media", "streamSid": _STREAM, "media": media})

    return peer.speaking(send, speech)


async def _hear(peer: CheckedSocket) -> bytes:
    """Half a second of what the agent says."""
    audio = b""
    while len(audio) < 4_000:
        event = await peer.until("media")
        expect(event["streamSid"] == _STREAM, f"streamSid: {event.get('streamSid')}")
        audio += base64.b64decode(event["media"]["payload"])
    return audio


@CHECKS.add
async def signature(target: Target) -> None:
    """A webhook with a wrong signature is refused (not checked where the URL is that of the stream)."""
    if target.url.startswith("ws"):
        return
    await _ask(target, target.key)
    try:
        await _ask(target, "not the token")
    except RefusedByServerError as error:
        expect(error.status in (401, 403), str(error))
        return
    raise FailedError("it was answered")


@CHECKS.add
async def answer(target: Target) -> None:
    """A question is answered by `media` in G.711 with the stream's `streamSid`."""
    async with _open(target) as peer, _microphone(peer, target.question):
        expect_speech(await _hear(peer), 8_000, "mulaw")


@CHECKS.add
async def interruption(target: Target) -> None:
    """Speech over an answer that waits at the telephone makes the server send `clear`."""
    async with _open(target) as peer:
        async with _microphone(peer, target.question):
            await _hear(peer)
        async with _microphone(peer, target.question):
            await peer.until("clear")


@CHECKS.add
async def unknown_event(target: Target) -> None:
    """Events that are not known, and marks that were not asked for, end nothing."""
    async with _open(target) as peer:
        await peer.send({"event": "weather", "streamSid": _STREAM})
        await peer.send({"event": "mark", "streamSid": _STREAM, "mark": {"name": "never sent"}})
        await peer.send({"event": "dtmf", "streamSid": _STREAM, "dtmf": {"track": "inbound", "digit": "5"}})
        async with _microphone(peer, target.question):
            await _hear(peer)


@CHECKS.add
async def stop(target: Target) -> None:
    """`stop` ends the stream: the server closes the WebSocket."""
    async with _open(target) as peer:
        async with _microphone(peer, target.speech[:0]):
            await asyncio.sleep(1)
        await peer.send({"event": "stop", "streamSid": _STREAM, "stop": {"callSid": _CALL}})
        code = await peer.closed()
        expect(code in _CLOSED, f"the close code is {code}")

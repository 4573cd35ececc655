"""What callers of a gateway do in the soak test: refused, broken off, left alone, and normal."""

from __future__ import annotations

import asyncio
import json
import ssl

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from soak.scripts import UnexpectedAnswerError
from soak.sessions import FULL, Session, Target, drop

_ANSWER_S = 20.0
_CHUNK = bytes(640)  # 20 ms of silence
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # quicker to make than one that is used
_FULL = (FULL, "too_many_calls")
_REFUSED: tuple[tuple[str, dict[str, object]], ...] = (
    *(("unsupported_language", {"language": name}) for name in ("de", "fr", "es", "it", "xx")),
    ("unsupported_sample_rate", {"output_sample_rate": 44_100}),
    ("unsupported_voice", {"voice": "nobody"}),
    ("invalid_message", {"phrases": ["€"]}),
    ("invalid_message", {"phrase_weight": 99}),
    ("invalid_message", {"sampling": {"temperature": -3}}),
)


async def refused_visit(target: Target) -> str:
    """A session that is refused when it is created, or when its stream is opened."""
    code, fields = target.random.choice(_REFUSED)
    found = await _visit(target, fields)
    if found not in (code, *_FULL):
        raise UnexpectedAnswerError(f"{fields} was answered with {found}")
    return found


async def short_visit(target: Target) -> str:
    """A normal session: some audio, then the client hangs up."""
    return await _visit(target, {"system_prompt": ""})


async def broken_visit(target: Target) -> str:
    """A session, refused or not, whose client is gone at a random moment."""
    fields = {"system_prompt": "", "greeting": "Good day."}
    if target.random.random() < 0.5:
        fields = target.random.choice(_REFUSED)[1]
    longest_s = target.random.choice((0.02, 0.06, 0.2, 1.0))
    return await drop(_visit(target, fields), longest_s * target.random.random(), "broken off")


async def left_visit(target: Target) -> str:
    """A session that is created, and no stream comes."""
    async with _http(target) as http:
        created = await http.post("/v1/sessions", json={})
    return "left" if created.is_success else _refusal(created)


async def listener(target: Target) -> str:
    """A stream of speech for the recogniser alone: normal, refused, or broken off."""
    kind = target.random.choice(("normal", "normal", "refused", "broken"))
    language = "de" if kind == "refused" else "en"
    url = f"{_ws(target)}/v1/listen?encoding=linear16&sample_rate=16000&language={language}"
    try:
        async with _socket(url) as socket:
            for _ in range(target.random.randrange(10)):
                await socket.send(_CHUNK)
            if kind == "broken":
                socket.transport.abort()
                return "broken off"
            await socket.send('{"type": "CloseStream"}')
            async with asyncio.timeout(_ANSWER_S):
                async for _ in socket:
                    pass
    except InvalidStatus as error:
        if kind != "refused" or not 400 <= error.response.status_code < 500:
            raise
        return f"{error.response.status_code}"
    if kind == "refused":
        raise UnexpectedAnswerError("a stream in German was opened")
    return "ended"


async def speech(target: Target) -> str:
    """Spoken words; the client may leave before their end."""
    body = {"model": "tts-1", "input": "Good day. " * target.random.randrange(1, 20), "voice": "alloy"}
    return await _stream(target, "/v1/audio/speech", body)


async def chat(target: Target) -> str:
    """A written answer; the client may leave before its end."""
    message = {"role": "user", "content": "Hello."}
    body = {"model": "qwen3", "messages": [message], "stream": True, "max_tokens": 8}
    return await _stream(target, "/v1/chat/completions", body)


async def _stream(target: Target, path: str, body: dict[str, object]) -> str:
    async with _http(target) as http, http.stream("POST", path, json=body) as answer:
        if answer.is_error:
            await answer.aread()
            return _refusal(answer)
        reads = target.random.choice((0, 1, 3, None))
        async for _ in answer.aiter_bytes():
            if reads == 0:
                return "broken off"
            reads = reads and reads - 1
    return "ended"


async def _visit(target: Target, fields: dict[str, object]) -> str:
    async with _http(target) as http:
        created = await http.post("/v1/sessions", json=fields)
    if created.is_error:
        return _refusal(created)
    try:
        return await _talk(target, created.json()["stream_url"])
    except InvalidStatus as refusal:
        return str(json.loads(refusal.response.body)["error"]["code"])


async def _talk(target: Target, url: str) -> str:
    async with _socket(url) as socket:
        try:
            async with asyncio.timeout(_ANSWER_S):
                first = json.loads(await socket.recv())
            if first["type"] != "connected":
                raise UnexpectedAnswerError(f"{first} before the session was connected")
            for _ in range(target.random.randrange(25)):
                await socket.send(_CHUNK)
                await asyncio.sleep(0.02 * target.random.random())
        except ConnectionClosed as closed:
            if closed.rcvd is None:
                raise
            return closed.rcvd.reason
        except asyncio.CancelledError:
            socket.transport.abort()  # without a word
            raise
    return "ended"


def _socket(url: str) -> connect:
    return connect(url, compression=None, open_timeout=_ANSWER_S)


def _ws(target: Target) -> str:
    return target.gateway.replace("http", "ws", 1)


def _http(target: Target) -> httpx.AsyncClient:
    # One for each session: a request that is cancelled may keep its place in the pool.
    return httpx.AsyncClient(base_url=target.gateway, timeout=_ANSWER_S, trust_env=False, verify=_NO_TLS)


def _refusal(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    code = str(error["code"] or error["type"])
    if answer.status_code >= 500 and answer.status_code != 503:
        raise UnexpectedAnswerError(f"{answer.request.url}: {answer.text}")
    return code


SESSIONS: dict[Session, int] = {
    refused_visit: 6,
    broken_visit: 4,
    short_visit: 2,
    left_visit: 1,
    listener: 3,
    speech: 1,
    chat: 1,
}
"""How often each kind is held, relative to the others."""

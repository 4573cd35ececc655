"""OpenAI's and Deepgram's interfaces as far as the drivers use them, on a free port of this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from contextlib import asynccontextmanager, suppress

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

SOUND = np.full(2_400, 1_000, "<i2").tobytes()  # 100 ms of 24 kHz


class Service:
    """What clients have sent, and whether they are refused."""

    def __init__(self):
        self.seen = []
        self.refuses = False
        self.answer = None
        """What is answered in place of an answer: bytes of a body, or messages of a WebSocket."""
        self.connections = 0

    def app(self):
        app = FastAPI()
        app.post("/v1/chat/completions")(self.chat)
        app.post("/v1/audio/speech")(self.speech)
        app.post("/v1/audio/transcriptions")(self.transcription)
        app.websocket("/v1/listen")(self.listen)
        app.websocket("/v1/speak")(self.speak)
        app.websocket("/v1/realtime")(self.realtime)
        return app

    def _refusal(self):
        return JSONResponse({"error": {"message": "no"}}, 429)

    async def chat(self, request: Request):
        if self.refuses:
            return self._refusal()
        self.seen.append((request.headers["authorization"], await request.json()))
        if self.answer is not None:
            return Response(self.answer, media_type="text/event-stream")

        async def events():
            for text in ("one ", "two"):
                chunk = {"index": 0, "delta": {"content": text}}
                yield _sse({"choices": [chunk]})
            yield _sse(
                {"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 1, "total_tokens": 8}}
            )
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def speech(self, request: Request):
        if self.refuses:
            return self._refusal()
        self.seen.append(await request.json())
        if self.answer is not None:
            return Response(self.answer, media_type="audio/pcm")

        async def parts():
            yield SOUND[:1_001]  # an odd number of bytes
            yield SOUND[1_001:]

        return StreamingResponse(parts(), media_type="audio/pcm")

    async def transcription(self, request: Request):
        if self.refuses:
            return self._refusal()
        async with request.form() as form:
            self.seen.append((form["model"], await form["file"].read()))
        if self.answer is not None:
            return Response(self.answer, media_type="application/json")
        return {"text": "one two"}

    async def listen(self, websocket: WebSocket):
        if self.refuses:
            await websocket.send_denial_response(Response(status_code=429))
            return
        await websocket.accept()
        self.seen.append(dict(websocket.query_params))
        audio = 0
        with suppress(WebSocketDisconnect):
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes"):
                    audio += len(message["bytes"])
                    if self.answer is not None:
                        await _send_all(websocket, self.answer)
                        continue
                    await websocket.send_json(_result("one", is_final=False))
                elif "CloseStream" in message.get("text", ""):
                    await websocket.send_json(_result("one two", is_final=True))
                    self.seen.append(audio)
                    await websocket.close()
                    return

    async def speak(self, websocket: WebSocket):
        await websocket.accept()
        self.connections += 1
        with suppress(WebSocketDisconnect):
            while True:
                message = await websocket.receive_json()
                if message["type"] == "Speak":
                    self.seen.append(message["text"])
                if message["type"] == "Flush" and self.refuses:
                    await websocket.send_json({"type": "Error", "code": "full"})
                elif message["type"] == "Flush" and self.answer is not None:
                    await _send_all(websocket, self.answer)
                elif message["type"] == "Flush":
                    await websocket.send_bytes(SOUND)
                    await websocket.send_json({"type": "Flushed", "sequence_id": 0})

    async def realtime(self, websocket: WebSocket):
        await websocket.accept()
        is_call = "intent" not in websocket.query_params
        heard = 0
        with suppress(WebSocketDisconnect):
            while True:
                event = await websocket.receive_json()
                if event["type"] == "session.update":
                    self.seen.append(event["session"])
                    if self.refuses:
                        await websocket.send_json({"type": "error", "error": {"code": "full"}})
                elif event["type"] == "input_audio_buffer.append":
                    loud = np.frombuffer(base64.b64decode(event["audio"]), "<i2")
                    before, heard = heard, heard + int((np.abs(loud) > 500).sum())
                    if self.answer is not None and not before and heard:
                        await _send_all(websocket, self.answer)
                    for answer in _answers(before, heard, is_call=is_call):
                        await websocket.send_json(answer)
                elif event["type"] == "input_audio_buffer.commit":
                    await websocket.send_json(_completed())


async def _send_all(websocket, messages):
    for message in messages:
        await (websocket.send_bytes if isinstance(message, bytes) else websocket.send_text)(message)


def _answers(before, heard, *, is_call):
    """At the first loud audio, and when it is over."""
    if not before and heard and not is_call:
        return [
            {"type": "input_audio_buffer.speech_started", "item_id": "i"},
            {"type": "conversation.item.input_audio_transcription.delta", "item_id": "i", "delta": "one"},
        ]
    if is_call and before == heard > 0:
        audio = base64.b64encode(SOUND).decode()
        return [{"type": "response.output_audio.delta", "delta": audio}, {"type": "response.done"}]
    return []


def _completed():
    kind = "conversation.item.input_audio_transcription.completed"
    return {"type": kind, "item_id": "i", "transcript": "one two"}


def _result(text, *, is_final):
    alternatives = {"alternatives": [{"transcript": text}]}
    return {"type": "Results", "is_final": is_final, "channel": alternatives}


def _sse(body):
    whole = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", **body}
    return f"data: {json.dumps(whole)}\n\n".encode()


@asynccontextmanager
async def serving(service):
    """The address of a service, ``http://host:port``."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(service.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = suppress  # signals stay with pytest
    task = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()

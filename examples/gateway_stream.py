"""Talk to a gateway over its WebSocket: ``.venv/bin/python examples/gateway_stream.py question.wav``.

It needs only ``httpx``, ``websockets`` and the standard library. PARLEY_URL names the gateway, PARLEY_KEY is
the API key, if one is asked for.
"""

import asyncio
import json
import os
import sys
import wave

import httpx
import websockets

GATEWAY = os.environ.get("PARLEY_URL", "http://127.0.0.1:8080")
HEADERS = {"Authorization": f"Bearer {os.environ['PARLEY_KEY']}"} if "PARLEY_KEY" in os.environ else {}
CHUNK = 640  # bytes: 20 ms of 16 kHz, mono, PCM16


async def speak(socket: websockets.ClientConnection, pcm: bytes) -> None:
    pcm += bytes(32_000 * 15)  # then silence, as a microphone sends it
    for start in range(0, len(pcm), CHUNK):
        await socket.send(pcm[start : start + CHUNK])
        await asyncio.sleep(0.02)  # as fast as it is spoken


async def main(recording: str) -> None:
    with wave.open(recording) as file:
        pcm = file.readframes(file.getnframes())
    async with httpx.AsyncClient(base_url=GATEWAY, headers=HEADERS) as http:
        session = (await http.post("/v1/sessions", json={})).raise_for_status().json()
    answer = b""
    async with websockets.connect(session["stream_url"], additional_headers=HEADERS) as socket:
        speaking = asyncio.create_task(speak(socket, pcm))
        async for message in socket:
            if isinstance(message, bytes):
                answer += message  # of the `audio` message before it: 22.05 kHz, mono, PCM16
                continue
            event = json.loads(message)
            if event["type"] == "transcript" and event["is_final"]:
                print("you:", event["text"])
            elif event["type"] == "response":
                print("agent:", event["text"])
            elif event["type"] == "metrics":
                await socket.send(json.dumps({"type": "control", "action": "hangup"}))
        speaking.cancel()
    with wave.open("answer.wav", "wb") as file:
        file.setparams((1, 2, 22_050, 0, "NONE", ""))
        file.writeframes(answer)


asyncio.run(main(sys.argv[1]))

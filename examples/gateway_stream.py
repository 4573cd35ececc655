"""Ask a gateway something over its WebSocket: python examples/gateway_stream.py QUESTION.wav.

For example tests/data/open_conversation/02-weather.wav (16 kHz, mono, 16 bit). It writes answer.wav.
It needs `make serve` and `make gateway` in other terminals, and no packages but httpx and websockets.
PARLEY_URL names the gateway, PARLEY_KEY is the API key, if one is asked for.
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
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY}


async def speak(socket: websockets.ClientConnection, pcm: bytes) -> None:
    pcm += bytes(32_000 * 15)  # then silence, as a microphone sends it
    for start in range(0, len(pcm), CHUNK):
        await socket.send(pcm[start : start + CHUNK])
        await asyncio.sleep(0.02)  # as fast as it is spoken
    await socket.send(json.dumps({"type": "control", "action": "hangup"}))


async def ask(pcm: bytes) -> bytes:
    async with httpx.AsyncClient(base_url=GATEWAY, headers=HEADERS) as http:
        created = await http.post("/v1/sessions", json={"tools": [WEATHER]})
    session = created.json()
    if created.is_error:
        sys.exit(f"error: {session['error']['message']} [{session['error']['code']}]")
    audio, text, is_whole = b"", "", False
    async with websockets.connect(session["stream_url"], additional_headers=HEADERS) as socket:
        speaking = asyncio.create_task(speak(socket, pcm))
        async for message in socket:
            if isinstance(message, bytes):
                audio += message  # of the `audio` message before it: 22.05 kHz, mono, PCM16
                continue
            event = json.loads(message)
            if event["type"] == "transcript" and event["is_final"]:
                print("you:", event["text"])
            elif event["type"] == "tool_request":
                answer = {"call_id": event["call_id"], "output": {"temperature": 8, "sky": "foggy"}}
                await socket.send(json.dumps({"type": "tool_response", **answer}))
            elif event["type"] == "response":
                text += event["text"]
            elif event["type"] == "error":
                print(f"error: {event['message']} [{event['code']}]", file=sys.stderr)
            elif event["type"] == "metrics":  # the turn is over
                is_whole = True
                await socket.send(json.dumps({"type": "control", "action": "hangup"}))
        speaking.cancel()
    print("agent:", text)
    if audio and not is_whole:
        sys.exit(f"error: the answer was cut off: {socket.close_reason or 'the connection ended'}")
    return audio


if sys.argv[1:] in (["--help"], ["-h"]):
    print(__doc__)
    sys.exit()
if len(sys.argv) != 2:
    sys.exit(__doc__)
try:
    with wave.open(sys.argv[1]) as file:
        form, question = file.getparams()[:3], file.readframes(file.getnframes())
except (OSError, EOFError, wave.Error) as error:
    sys.exit(f"error: {sys.argv[1]}: {getattr(error, 'strerror', error) or 'no WAV file'}")
if form != (1, 2, 16_000):
    sys.exit(f"error: {sys.argv[1]}: 16 kHz, mono, 16 bit expected")
try:
    answer = asyncio.run(ask(question))
except (OSError, ValueError, httpx.ConnectError) as error:  # no gateway, or not one that answers with JSON
    sys.exit(f"error: {GATEWAY}: {error} (does `make gateway` run there?)")
except (httpx.HTTPError, websockets.WebSocketException) as error:
    sys.exit(f"error: {GATEWAY}: {error}")
except KeyboardInterrupt:
    sys.exit(130)
if not answer:
    sys.exit("no answer: is there speech in the recording?")
with wave.open("answer.wav", "wb") as file:
    file.setparams((1, 2, 22_050, 0, "NONE", ""))
    file.writeframes(answer)
print("The answer is in answer.wav.")

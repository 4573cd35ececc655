"""Twilio's side of a Media Stream: signs, sends audio, plays on request, and returns marks."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections import deque
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed

AUTH_TOKEN = "12345"  # noqa: S105 - the one of these tests
PUBLIC_URL = "https://voice.example"
ACCOUNT = "AC00000000000000000000000000000000"


def sign(address, form=(), token=AUTH_TOKEN):
    """As Twilio's documentation says."""
    text = address + "".join(name + value for name, value in sorted(dict(form).items()))
    return base64.b64encode(hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()).decode()


def voice_request(form, token=AUTH_TOKEN, path="/v1/twilio/voice"):
    """Headers and body of the request that a call is announced with, or of another webhook."""
    return {
        "headers": {
            "X-Twilio-Signature": sign(PUBLIC_URL + path, form, token),
            "Content-Type": "application/x-www-form-urlencoded",
        },
        "content": urlencode(form),
    }


class TwilioLine:
    """One stream, over an open WebSocket of the package ``websockets``."""

    def __init__(self, socket):
        self._socket = socket
        self._buffer = deque()  # audio and marks that were not played yet
        self.heard = b""
        """All µ-law that was played."""
        self.clears = 0
        self.messages = []
        self._sequence = 0

    async def send(self, event, **fields):
        self._sequence += 1
        message = {"event": event, "sequenceNumber": str(self._sequence), "streamSid": "MZ1", **fields}
        await self._socket.send(json.dumps(message))

    async def begin(self, parameters=None, account=ACCOUNT, call_sid="CA1", **media_format):
        await self._socket.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1} | media_format
        info = {
            "accountSid": account, "streamSid": "MZ1", "callSid": call_sid, "tracks": ["inbound"],
            "mediaFormat": form, "customParameters": parameters or {},
        }  # fmt: skip
        await self.send("start", start=info)

    async def speak(self, ulaw, track="inbound"):
        payload = base64.b64encode(ulaw).decode()
        await self.send("media", media={"track": track, "chunk": "1", "timestamp": "5", "payload": payload})

    async def press(self, digit):
        await self.send("dtmf", dtmf={"track": "inbound_track", "digit": digit})

    async def hang_up(self):
        await self.send("stop", stop={"accountSid": ACCOUNT, "callSid": "CA1"})

    async def receive(self, timeout_s=10):
        """Receive one message."""
        message = json.loads(await asyncio.wait_for(self._socket.recv(), timeout_s))
        assert message["streamSid"] == "MZ1"
        self.messages.append(message)
        match message["event"]:
            case "media":
                self._buffer.append(base64.b64decode(message["media"]["payload"]))
            case "mark":
                self._buffer.append(message["mark"]["name"])
            case "clear":
                self.clears += 1
                await self._return([part for part in self._buffer if isinstance(part, str)])
                self._buffer.clear()
        return message

    async def receive_until(self, event):
        while (message := await self.receive())["event"] != event:
            pass
        return message

    async def receive_marks(self, count):
        for _ in range(count):
            await self.receive_until("mark")

    @property
    def waiting(self):
        """µ-law that was not played yet."""
        return b"".join(part for part in self._buffer if isinstance(part, bytes))

    async def play(self, pieces=None):
        """Play everything, or the next pieces up to their marks."""
        marks = []
        while self._buffer and (pieces is None or len(marks) < pieces):
            part = self._buffer.popleft()
            if isinstance(part, bytes):
                self.heard += part
            else:
                marks.append(part)
        await self._return(marks)

    async def play_ms(self, milliseconds):
        """Play at most this much."""
        left, marks = 8 * milliseconds, []
        while self._buffer and (left > 0 or isinstance(self._buffer[0], str)):
            part = self._buffer.popleft()
            if isinstance(part, str):
                marks.append(part)
                continue
            self.heard += part[:left]
            if len(part) > left:
                self._buffer.appendleft(part[left:])
            left -= len(part)
        await self._return(marks)

    async def closed(self):
        """Wait until the gateway has closed."""
        await self._socket.wait_closed()

    async def _return(self, names):
        for name in names:
            await self.send("mark", mark={"name": name})


async def closing(line):
    """The code and reason with which the gateway closes."""
    try:
        while True:
            await line.receive()
    except ConnectionClosed as closed:
        return closed.rcvd.code, closed.rcvd.reason

"""A WebRTC client: a tone as its microphone, a level meter as its loudspeaker."""

from __future__ import annotations

import asyncio
import fractions
import json
import time
from contextlib import asynccontextmanager

import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame
from listening_gateway import until
from openai_session import check_event

DEADLINE_S = 10.0
_RATE = 48_000
_SAMPLES = _RATE // 50


class Tone(MediaStreamTrack):
    """A sine of 440 Hz in real time; ``skip`` omits frames, as if packets were lost."""

    kind = "audio"

    def __init__(self):
        super().__init__()
        self.skip = 0
        self._count = 0
        self._began = time.monotonic()

    async def recv(self):
        self._count += 1 + self.skip
        self.skip = 0
        await asyncio.sleep(max(0.0, self._began + self._count / 50 - time.monotonic()))
        at = np.arange(_SAMPLES) + self._count * _SAMPLES
        samples = (8_000 * np.sin(at * 2 * np.pi * 440 / _RATE)).astype(np.int16)
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = _RATE
        frame.pts = self._count * _SAMPLES
        frame.time_base = fractions.Fraction(1, _RATE)
        return frame


async def post_offer(http, sdp, resumes=None):
    """Post an offer; ``resumes``: the session that goes on."""
    headers = {"Content-Type": "application/sdp"}
    query = {"session_id": resumes} if resumes else {}
    return await http.post("/v1/realtime/calls", content=sdp, headers=headers, params=query)


class RtcClient:
    """One call."""

    def __init__(self, http, microphone=None, camera=()):
        self.http = http
        self.camera = camera
        """Lines of a section that a browser would add; aiortc cannot."""
        self.answer = ""
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.microphone = microphone or Tone()
        self.events = []
        self.levels = []
        """Loudness of every received frame."""
        self.heard = []
        """Every received frame: int16 of its first channel, 48 kHz."""
        self.location = ""
        self._changed = asyncio.Event()
        self._tasks = []
        self.peer.addTrack(self.microphone)
        self.channel = self.peer.createDataChannel("oai-events")
        self.channel.on("message", self._take)
        self.peer.on("track", lambda track: self._tasks.append(asyncio.create_task(self._listen(track))))

    async def offer(self, session=None, resumes=None):
        """Send the offer and apply the answer."""
        await self.peer.setLocalDescription(await self.peer.createOffer())
        sdp = self.peer.localDescription.sdp + "".join(f"{line}\r\n" for line in self.camera)
        if session is None:
            answer = await post_offer(self.http, sdp, resumes)
        else:
            form = {"sdp": (None, sdp), "session": (None, json.dumps(session))}
            answer = await self.http.post("/v1/realtime/calls", files=form)
        assert answer.status_code == 201, answer.text
        assert answer.headers["content-type"].startswith("application/sdp")
        self.location = answer.headers["location"]
        self.answer = answer.text
        taken = self.answer.partition("m=video 0 ")[0] if self.camera else self.answer
        await self.peer.setRemoteDescription(RTCSessionDescription(taken, "answer"))

    def send(self, kind, **fields):
        """Send an event of the client."""
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def receive(self, kind, since=0):
        """The first event of this type, from number ``since`` on."""
        return await self.until(
            lambda: next((one for one in self.events[since:] if one["type"] == kind), None)
        )

    async def open_session(self):
        """Make the gateway open the agent's session."""
        self.send("session.update", session={"type": "realtime"})
        await self.receive("session.updated")

    def kinds(self):
        """The types of all events so far."""
        return [event["type"] for event in self.events]

    async def close(self):
        """Hang up."""
        await self.peer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition):
        """Wait for a condition on received events or audio; returns its value."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := condition()):
                self._changed.clear()
                await self._changed.wait()
        return found

    def _take(self, message):
        event = json.loads(message)
        check_event(event)
        self.events.append(event)
        self._changed.set()

    async def _listen(self, track):
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels))
            self.heard.append(samples[:, 0])
            self.levels.append(int(np.abs(samples).max()))
            self._changed.set()


@asynccontextmanager
async def calling(http, session=None, microphone=None, camera=(), resumes=None):
    """A call whose session has begun."""
    client = RtcClient(http, microphone, camera)
    try:
        await client.offer(session, resumes)
        await client.receive("session.created")
        yield client
    finally:
        await client.close()


async def forgotten(location):
    """Wait until the gateway has ended a call."""
    name = location.rpartition("/")[2]
    await until(lambda: name not in {task.get_name() for task in asyncio.all_tasks()})

"""A telephone on this machine: it calls and is called, speaks, listens and presses keys."""

import asyncio
import ctypes
import random
import re
import socket
import struct
from contextlib import asynccontextmanager, suppress

import numpy as np
from aiortc.rtp import RtpPacket

from parley.timeouts import loop_time
from parley_gateway.sip.call_audio import CallAudio
from parley_gateway.sip.settings import SipSettings
from parley_gateway.sip.sofia import SipAddress, SofiaStack

HOST = "127.0.0.1"
DEADLINE_S = 10.0
_GIVEN = set()
TONE = np.round(9_000 * np.sin(2 * np.pi * 400 / 8_000 * np.arange(160))).astype(np.int16)


def free_port():
    """A port for UDP and TCP, below those that the system gives away meanwhile; each only once."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        if port in _GIVEN:
            continue
        _GIVEN.add(port)
        with socket.socket(type=socket.SOCK_DGRAM) as datagrams, socket.socket() as stream, suppress(OSError):
            datagrams.bind((HOST, port))
            stream.bind((HOST, port))
            return port


async def until(condition, limit_s=DEADLINE_S):
    """Wait until something is so, and let those who play audio work meanwhile."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - no event reports the change
            await asyncio.sleep(0.01)


class _Stack(SofiaStack):
    """Lets itself be transferred."""

    refer_to = ""

    def _parameters(self):
        tags = super()._parameters()
        return tags | {"siptag_allow_str": f"{tags['siptag_allow_str']}, REFER"}

    def _read(self, name, *rest):
        sip = rest[-2]
        if name == "refer":
            self.refer_to = self._header(sip, "refer_to").strip("<>")
            self._library.nua_notify.argtypes, self._library.nua_notify.restype = (ctypes.c_void_p,), None
        return super()._read(name, *rest)


class Telephone:
    """One telephone; `on_invite` says how it answers: a status, or None for nothing at all."""

    def __init__(self, *, user="anna", on_invite=200, loss=0.0, **settings):
        self.port = free_port()
        self.user = user
        settings = {"listen": f"sip:{HOST}:{self.port}", "codecs": ("PCMU",), "srtp": "off"} | settings
        self.settings = SipSettings(**settings)
        self._on_invite = on_invite
        self.events = []
        self._changed = asyncio.Event()
        self.dialog = 0
        self.remote_sdp = ""
        self.audio = CallAudio(self.settings, HOST)
        self.heard = []
        self._lost = random.Random(user).random
        self._loss = loss
        self.says = None
        """Frames that it speaks, one after the other; silence after them."""
        self._stack = _Stack(
            SipAddress(self.settings.listen, self.settings.contact),
            self._on_event,
            admit=lambda _: True,
            limit=100,
        )

    @property
    def url(self):
        return f"sip:{self.user}@{HOST}:{self.port}"

    @property
    def refer_to(self):
        """Whom it was asked to call."""
        return self._stack.refer_to

    @asynccontextmanager
    async def on(self):
        await self._stack.start()
        await self.audio.open()
        talking = asyncio.create_task(self._talk())
        try:
            yield self
        finally:
            talking.cancel()
            with suppress(asyncio.CancelledError):
                await talking
            self.audio.close()
            await self._stack.close()

    def call(self, url):
        self.dialog = self._stack.invite(url, self.audio.offer(), caller=f"<{self.url}>")

    def hang_up(self):
        self._stack.bye(self.dialog)

    def give_up(self):
        self._stack.cancel(self.dialog)

    def hold(self, direction="sendonly"):
        """Change the session of the call."""
        direction_of = "a=(send|recv|sendrecv|inactive)(only)?\r"
        own = re.sub(direction_of, f"a={direction}\r", self.audio._own.describe())
        self._stack._do(lambda: self._stack._call("nua_invite", self.dialog, self._stack._session(own)))

    def respond(self, status, phrase="OK"):
        self._stack.respond(self.dialog, status, phrase, self._description if status == 200 else "")

    def notify(self, fragment):
        """Tell how a transfer goes on."""
        tags = {
            "siptag_event_str": "refer",
            "siptag_content_type_str": "message/sipfrag",
            "siptag_payload_str": fragment,
        }
        self._stack._do(lambda: self._stack._call("nua_notify", self.dialog, tags))

    def press(self, key):
        stream = self.audio.stream
        payload = struct.pack("!BBH", "0123456789*#ABCD".index(key), 10, 160)
        stamp = stream._timestamp
        for _ in range(3):
            packet = RtpPacket(101, 0, stream._sequence, stamp, stream._ssrc, payload)
            stream._sequence = (stream._sequence + 1) % 65_536
            data = packet.serialize()
            stream._transport.sendto(stream._encrypt.protect(data) if stream._encrypt else data, stream._to)

    def ready(self):
        """How often the session was agreed on."""
        return [event for event in self.events if event.state == "ready"]

    async def until(self, fits):
        """The first event that fits, also one that came before."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for event in self.events:
                    if fits(event):
                        return event
                self._changed.clear()
                await self._changed.wait()

    async def state(self, state):
        return await self.until(lambda event: event.state == state)

    async def hears(self, frames=1):
        """Wait until so many frames of the agent were heard, all in all."""
        await until(lambda: sum(loudness > 1_000 for loudness in self.heard) >= frames)

    async def hears_nothing(self, frames=10, limit_s=DEADLINE_S):
        """Wait until the last frames are silent."""
        await until(
            lambda: len(self.heard) >= frames and all(loudness < 50 for loudness in self.heard[-frames:]),
            limit_s,
        )

    def _on_event(self, event):
        self.events.append(event)
        self._changed.set()
        self.remote_sdp = event.remote_sdp or self.remote_sdp
        if event.name == "invite" and not self.dialog:
            self.dialog = event.dialog
        if event.state == "received":
            if self.audio._own is not None:
                self._stack.respond(event.dialog, 200, "OK", self.audio.renew(self.remote_sdp))
                return
            self._description = self.audio.answer(self.remote_sdp)
            if self._on_invite is not None:
                self._stack.respond(event.dialog, 180, "Ringing")
                self.respond(self._on_invite, "Busy Here" if self._on_invite == 486 else "OK")
        elif event.name == "invite_response" and event.remote_sdp:
            self.audio.connect(self.remote_sdp)

    async def _talk(self):
        due_s = loop_time()
        while True:
            due_s += 0.02
            await asyncio.sleep(max(0.0, due_s - loop_time()))
            stream = self.audio.stream
            if self.audio._own is None:
                continue
            frame = self.says.pop(0) if self.says else np.zeros(160, np.int16)
            if stream.sample_rate == 48_000:
                frame = np.repeat(frame, 6)
            if self._lost() < self._loss:
                stream._sequence = (stream._sequence + 1) % 65_536
                stream._timestamp += 160
            else:
                stream.send(frame)
            self.heard.append(int(np.abs(stream.receive().astype(int)).max()))

"""The audio of one dialog: what both sides have described, and the stream."""

from __future__ import annotations

import secrets

from parley_gateway.sip.line import PhoneLine
from parley_gateway.sip.rtp import RtpStream, sample_rate_of
from parley_gateway.sip.session_description import (
    CodecName,
    NotAcceptableError,
    RtpMedia,
    answer,
    make_offer,
    read,
)
from parley_gateway.sip.settings import SipSettings, is_tls


class CallAudio:
    """Owns the port of a call.

    Args:
        settings: All of them.
        source: Address of the peer's signalling; empty: not known.
    """

    def __init__(self, settings: SipSettings, source: str) -> None:
        self._settings = settings
        self._source = source
        self._host = settings.address or settings.host
        self.stream = RtpStream(self._on_key)
        self._line: PhoneLine | None = None
        self._is_on_hold = False
        self._codecs: tuple[CodecName, ...] = settings.codecs
        self._own: RtpMedia | None = None
        self._key = b""
        self._number, self._version = secrets.randbits(31), 0

    async def open(self) -> None:
        """Take a port; raises TooManyCallsError."""
        await self.stream.open(self._settings.host, self._settings.port_range)

    def close(self) -> None:
        """Give the port back."""
        self._line = None
        self.stream.close()

    def attach(self, line: PhoneLine) -> None:
        """Keys go to this line from now on, and it knows whether the peer holds the call."""
        self._line = line
        line.is_on_hold = self._is_on_hold

    @property
    def sample_rate(self) -> int:
        """What the agent speaks in (Hz); known once there is an answer, or a late offer."""
        return sample_rate_of(self._own.codec if self._own else self._codecs[0])

    def offer(self, *, is_late: bool = False) -> str:
        """The description in an INVITE; ``is_late``: in the response to one that has none.

        The agent speaks before the answer to that, so it offers only codecs of one sample rate.
        """
        settings = self._settings
        if is_late:
            slow = tuple(codec for codec in settings.codecs if codec != "opus")
            self._codecs = slow or settings.codecs
        encrypts = settings.srtp == "required" or (settings.srtp == "optional" and is_tls(settings.listen))
        description, self._key = make_offer(
            self._host, self.stream.port, self._codecs, encrypts=encrypts, origin=self._next_origin()
        )
        return description

    def connect(self, sdp: str) -> None:
        """Begin, with the peer's answer; raises NotAcceptableError."""
        self._connect(read(sdp, self._codecs, "required" if self._key else "off"))

    def answer(self, sdp: str) -> str:
        """Begin, with the peer's offer; returns the own description. Raises NotAcceptableError."""
        return self._connect(read(sdp, self._codecs, self._settings.srtp)).describe()

    def renew(self, sdp: str) -> str:
        """Go on otherwise, or with a peer elsewhere, in the codec of before; raises NotAcceptableError."""
        if self._own is None:
            raise NotAcceptableError("there is no session yet")
        theirs = read(sdp, (self._own.codec,), "required" if self._own.key else "off")
        return self._connect(theirs).describe()

    def _connect(self, theirs: RtpMedia) -> RtpMedia:
        self._own = answer(theirs, self._host, self.stream.port, key=self._key, origin=self._next_origin())
        self._key = self._own.key
        self.stream.connect(theirs, self._source, self._key)
        self._is_on_hold = not theirs.sends
        if self._line is not None:
            self._line.is_on_hold = self._is_on_hold
        return self._own

    def _next_origin(self) -> str:
        self._version += 1
        return f"{self._number} {self._version}"

    def _on_key(self, key: str) -> None:
        if self._line is not None:
            self._line.send_key(key)

"""Session descriptions (SDP, RFC 8866) of a telephone call: one stream of audio, in the clear or by SRTP.

aiortc's reads only those of WebRTC, and sofia-sip's cannot be given those of strangers.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from parley.errors import InvalidInputError

CodecName: TypeAlias = Literal["opus", "PCMU", "PCMA"]
CODECS: dict[CodecName, tuple[int, str]] = {
    "opus": (96, "opus/48000/2"),
    "PCMU": (0, "PCMU/8000"),
    "PCMA": (8, "PCMA/8000"),
}
"""The payload type in own offers, and the encoding with its clock."""
Encryption: TypeAlias = Literal["off", "optional", "required"]
FRAME_MS = 20
_KEY_BYTES = 30  # of the key and the salt of AES_CM_128_HMAC_SHA1_80 (RFC 4568)
_SUITE = "AES_CM_128_HMAC_SHA1_80"
_EVENT_TYPE = 101
_LAST_PORT = 65_535
_MOST_MEDIA = 16
"""Streams of an offer; each has its line in the answer."""
_MEDIA = re.compile(r"m=audio ([0-9]{1,5})(?:/[0-9]{1,5})? (RTP/S?AVPF?)((?: [0-9]{1,3}){1,64})")
_OTHER_MEDIA = re.compile(r"(m=[!-~]{1,32}) [0-9]{1,5}(?:/[0-9]{1,5})?((?: [!-~]{1,32}){2,64})")
_CONNECTION = re.compile(r"c=IN IP[46] (\S+)")
_RTPMAP = re.compile(r"a=rtpmap:([0-9]{1,3}) (\S+)")
_CRYPTO = re.compile(
    rf"a=crypto:([0-9]{{1,9}}) {_SUITE} inline:([A-Za-z0-9+/=]+)(\|2\^[0-9]+|\|[0-9]+)?(?: .*)?"
)
_DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")


class NotAcceptableError(InvalidInputError):
    """A session description has no audio that is supported here."""

    code = "not_acceptable"


@dataclass(frozen=True, slots=True)
class RtpMedia:
    """One side of a stream of audio."""

    host: str
    port: int
    codec: CodecName
    payload_type: int
    event_type: int | None = None
    """Payload type of keys (RFC 4733); None: they cannot be told."""
    event_clock_hz: int = 8_000
    key: bytes = b""
    """Of SRTP, key and salt, with which this side encrypts; empty: RTP in the clear."""
    key_tag: int = 1
    """Which of the offer's keys it belongs to."""
    sends: bool = True
    """Whether this side sends audio: not while it holds the call."""
    receives: bool = True
    before: tuple[str, ...] = ()
    """In an answer, lines of the streams that are refused before this one."""
    after: tuple[str, ...] = ()
    origin: str = "1 1"
    """Number and version of the session."""

    @property
    def clock_hz(self) -> int:
        """Of the timestamps."""
        return 48_000 if self.codec == "opus" else 8_000

    def describe(self) -> str:
        """The description of this side as the only one, in an answer or after it."""
        return _describe(self, [(self.codec, self.payload_type)])


def make_offer(
    host: str, port: int, codecs: Sequence[CodecName], *, encrypts: bool, origin: str = "1 1"
) -> tuple[str, bytes]:
    """An offer with all codecs, and its SRTP key; the key is empty where none is offered."""
    key = secrets.token_bytes(_KEY_BYTES) if encrypts else b""
    first = RtpMedia(host, port, codecs[0], CODECS[codecs[0]][0], _EVENT_TYPE, key=key, origin=origin)
    return _describe(first, [(codec, CODECS[codec][0]) for codec in codecs]), key


def read(sdp: str, codecs: Sequence[CodecName], encryption: Encryption) -> RtpMedia:
    """The peer's side: the first of its audio and of its codecs that is one of ``codecs``.

    Raises:
        NotAcceptableError: there is no such audio, or its encryption is not what is wanted.
    """
    lines = [line.strip() for line in sdp.splitlines()]
    starts = [at for at, line in enumerate(lines) if line.startswith("m=")]
    media = [lines[start:end] for start, end in pairwise([*starts, len(lines)])]
    problem = NotAcceptableError("there is no audio by RTP")
    if len(media) > _MOST_MEDIA:
        raise NotAcceptableError(f"there are more than {_MOST_MEDIA} streams")
    for at, own in enumerate(media):
        if own[0].startswith("m=audio "):
            try:
                audio = _read_audio(own, lines[: starts[0]], codecs, encryption)
            except NotAcceptableError as error:
                problem = error
                continue
            before, after = ([_refuse(one[0]) for one in part] for part in (media[:at], media[at + 1 :]))
            return replace(audio, before=tuple(before), after=tuple(after))
    raise problem


def _refuse(line: str) -> str:
    """The ``m=`` line of an answer for a stream that is not taken."""
    if (found := _OTHER_MEDIA.fullmatch(line)) is None:
        raise NotAcceptableError("a stream cannot be read")
    return f"{found[1]} 0{found[2]}"


def _read_audio(
    media: Sequence[str], session: Sequence[str], codecs: Sequence[CodecName], encryption: Encryption
) -> RtpMedia:
    own = media[1:]
    if (found := _MEDIA.fullmatch(media[0])) is None:
        raise NotAcceptableError("there is no audio by RTP")
    encodings = {int(of): name.lower() for of, name in _matches(_RTPMAP, own)}
    types = [int(number) for number in found[3].split()]
    codec, payload_type = _choose(types, encodings, codecs)
    event_type, event_clock_hz = _choose_events(types, encodings, "48000" if codec == "opus" else "8000")
    tag, key = _read_key(own, encrypted="SAVP" in found[2], encryption=encryption)
    direction = next((line[2:] for line in [*own, *session] if line[2:] in _DIRECTIONS), "sendrecv")
    if not 1 <= int(found[1]) <= _LAST_PORT:
        raise NotAcceptableError("the audio has no port")
    hosts = [*_matches(_CONNECTION, own), *_matches(_CONNECTION, session)]
    host = _checked_host(hosts[0][0] if hosts else "")
    is_held = ipaddress.ip_address(host).is_unspecified  # as old telephones hold a call
    return RtpMedia(
        host=host,
        port=int(found[1]),
        codec=codec,
        payload_type=payload_type,
        event_type=event_type,
        event_clock_hz=event_clock_hz,
        key=key,
        key_tag=tag,
        sends=direction in ("sendrecv", "sendonly") and not is_held,
        receives=direction in ("sendrecv", "recvonly") and not is_held,
    )


def answer(offer: RtpMedia, host: str, port: int, *, key: bytes, origin: str = "1 1") -> RtpMedia:
    """The own side for the peer's; ``key``: that of before, if there is one."""
    fresh = key or secrets.token_bytes(_KEY_BYTES)
    return replace(
        offer,
        host=host,
        port=port,
        key=fresh if offer.key else b"",
        sends=offer.receives,
        receives=offer.sends,
        origin=origin,
    )


def _matches(pattern: re.Pattern[str], lines: Sequence[str]) -> list[tuple[str, ...]]:
    return [found.groups() for line in lines if (found := pattern.fullmatch(line))]


def _choose(
    types: Sequence[int], encodings: dict[int, str], codecs: Sequence[CodecName]
) -> tuple[CodecName, int]:
    static = {number: name.lower() for number, name in CODECS.values() if number < 96}
    named = {CODECS[codec][1].lower(): codec for codec in codecs}
    for number in types:
        encoding = encodings.get(number, static.get(number, ""))
        if encoding.endswith("/1") and encoding.count("/") == 2:
            encoding = encoding.removesuffix("/1")
        if encoding in named:
            return named[encoding], number
    raise NotAcceptableError(f"none of the codecs is supported; {', '.join(codecs)} are")


def _choose_events(types: Sequence[int], encodings: dict[int, str], clock: str) -> tuple[int | None, int]:
    """The payload type and the clock of keys, rather that of the codec."""
    found = [(number, encodings.get(number, "").removeprefix("telephone-event/")) for number in types]
    found = [(number, rest) for number, rest in found if rest in ("8000", "48000")]
    number, rest = next((one for one in found if one[1] == clock), found[0] if found else (None, "8000"))
    return number, int(rest)


def _read_key(lines: Sequence[str], *, encrypted: bool, encryption: Encryption) -> tuple[int, bytes]:
    if not encrypted:
        if encryption == "required":
            raise NotAcceptableError("only SRTP is accepted")
        return 1, b""
    if encryption == "off":
        raise NotAcceptableError("SRTP is off")
    for tag, encoded, _ in _matches(_CRYPTO, lines):
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            continue
        if len(key) == _KEY_BYTES:
            return int(tag), key
    raise NotAcceptableError(f"there is no SRTP key for {_SUITE} without an MKI")


def _checked_host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host.partition("/")[0]))
    except ValueError as error:
        raise NotAcceptableError("the audio has no IP address") from error


def _describe(media: RtpMedia, codecs: Sequence[tuple[CodecName, int]]) -> str:
    family = f"IN IP{ipaddress.ip_address(media.host).version} {media.host}"
    types = [number for _, number in codecs]
    lines = [
        "v=0",
        f"o=- {media.origin} {family}",
        "s=-",
        f"c={family}",
        "t=0 0",
        *media.before,
    ]
    rtpmaps = [f"a=rtpmap:{number} {CODECS[codec][1]}" for codec, number in codecs]
    if media.event_type is not None:
        types.append(media.event_type)
        rtpmaps += [
            f"a=rtpmap:{media.event_type} telephone-event/{media.event_clock_hz}",
            f"a=fmtp:{media.event_type} 0-15",
        ]
    profile = "RTP/SAVP" if media.key else "RTP/AVP"
    lines += [f"m=audio {media.port} {profile} {' '.join(map(str, types))}", *rtpmaps]
    if media.key:
        inline = base64.b64encode(media.key).decode()
        lines.append(f"a=crypto:{media.key_tag} {_SUITE} inline:{inline}")
    both = {(True, True): "sendrecv", (True, False): "sendonly", (False, True): "recvonly"}
    lines += [f"a=ptime:{FRAME_MS}", f"a={both.get((media.sends, media.receives), 'inactive')}"]
    lines += [*media.after, ""]
    return "\r\n".join(lines)


assert set(CODECS) == set(get_args(CodecName))

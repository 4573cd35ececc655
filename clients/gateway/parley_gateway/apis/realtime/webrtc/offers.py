"""SDP offers: what is taken of them, and the answer to all of it.

aiortc sees only a part of an offer: the first audio section and the data channel, and of these only the
lines that a connection needs, each kind up to a bound. Everything else is answered here, as RFC 3264
section 6 has it: a section with port 0. So a page that adds its camera still has its audio call, nothing is
received that the session does not use, and the work that an offer causes is linear in its size.

Candidates only name addresses that are tried from here (RFC 8445). Clients try the gateway's addresses
themselves, and are answered where they come from, so few candidates are needed: those that are not public
are left out, unless a setting names their network, or an offer could make the gateway send STUN into
networks that its author does not reach. Names (mDNS among them) are never resolved.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aiortc.sdp import SessionDescription

from parley_gateway.apis.realtime.server_events import ClientEventError

LARGEST = 65_536
"""Of an offer; browsers send a few thousand (characters)."""
MOST_CANDIDATES = 32
"""Further ones are ignored, as are those that cannot be used."""
_MOST_SECTIONS = 16
_MOST_LINES = 64
"""Of one kind, in a section that is taken."""
_LONGEST_LINE = 1_024
_LONGEST_MID = 64

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NUMBER = re.compile(r"[0-9]{1,10}")
_SECTION = re.compile(r"(?m)^(?=m=)")
_HEAD = re.compile(r"m=([a-z]{1,32}) ([0-9]{1,5}) ([A-Z/]{1,32}) ([!-~ ]{1,512})")
# What aiortc reads of the sections that are taken; ICE and DTLS apart.
_TAKEN = {
    "audio": (
        *("mid", "rtcp-mux", "rtpmap", "fmtp", "extmap", "ssrc", "msid"),
        *("sendrecv", "sendonly", "recvonly", "inactive"),
    ),
    "application": ("mid", "sctp-port", "sctpmap", "max-message-size"),
}
_TRANSPORT = ("ice-ufrag", "ice-pwd", "ice-options", "fingerprint", "setup")
_FIRST_PORT = 1_024
# What is given out of IPv6; `is_global` knows only some of what is not.
_GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
# Not public either: relays of 6to4, documentation, and ORCHIDv2, which no router knows.
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.88.99.0/24", "3fff::/20", "2001:20::/28")))
# Addresses of IPv4 inside of IPv6: where a packet goes is the decision of another router.
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")))
_ISATAP = 0x5EFE


@dataclass
class _Section:
    """One ``m=`` line and what follows it."""

    head: str
    kind: str
    port: int
    lines: list[str] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        """The values of an attribute; empty for those without one."""
        start = f"a={name}"
        return [
            line[len(start) + 1 :] for line in self.lines if line == start or line.startswith(f"{start}:")
        ]

    @property
    def mid(self) -> str:
        """Its name; empty: it has none."""
        return next(iter(self.values("mid")), "")

    @property
    def is_open(self) -> bool:
        """Whether the offerer wants it (RFC 8843 has bundled ones with port 0)."""
        return self.port != 0 or bool(self.values("bundle-only"))

    @property
    def sends(self) -> bool:
        """Whether the client wants to send, as it does where no direction is given."""
        return not (self.values("recvonly") or self.values("inactive"))


class Offer:
    """An offer that can be answered.

    Args:
        text: As it came.
        networks: Whose addresses are tried, beside public ones.

    Raises:
        Refusal: it is too large, no SDP, or has no audio, or no fingerprints.
    """

    def __init__(self, text: str, networks: Sequence[_Network] = ()) -> None:
        if len(text) > LARGEST:
            raise _refused(f"The offer has {len(text)} characters; at most {LARGEST} are allowed.")
        self._head, self._sections = _split(text)
        self._taken = self._choose()
        self.sdp = self._reduced(networks)
        """What is taken of it, for the library."""
        self._check()

    def answer(self, answer: str) -> str:
        """The answer to the whole offer, of the library's to what was taken of it."""
        head, *parts = _SECTION.split(answer)
        taken = {id(section): part for section, part in zip(self._taken, parts, strict=True)}
        return head + "".join(taken.get(id(section)) or _rejected(section) for section in self._sections)

    def _choose(self) -> list[_Section]:
        audio = [section for section in self._sections if section.kind == "audio" and section.is_open]
        if not audio:
            raise _refused("The offer has no audio.")
        wanted = [next((section for section in audio if section.sends), audio[0])]
        wanted += [
            section for section in self._sections if section.kind == "application" and section.is_open
        ][:1]
        return [section for section in self._sections if any(section is one for one in wanted)]

    def _reduced(self, networks: Sequence[_Network]) -> str:
        mids = [section.mid for section in self._taken]
        # The library would take the last of several names.
        if any(len(section.values("mid")) > 1 for section in self._taken):
            raise _refused("The offer's media have more than one name (a=mid).")
        for mid in mids:
            if len(mid) > _LONGEST_MID or " " in mid or mids.count(mid) > 1:
                raise _refused("The offer's media need short names that differ (a=mid).")
        bundle = self._bundle()
        tagged = next((section for section in self._sections if bundle and section.mid == bundle[0]), None)
        lines = ["v=0", "o=- 0 0 IN IP4 0.0.0.0", "s=-", "t=0 0"]
        if bundled := [mid for mid in mids if mid in bundle]:
            lines.append("a=group:BUNDLE " + " ".join(bundled))
        lines.append("a=msid-semantic:WMS *")
        lines += ["a=ice-lite"] if "a=ice-lite" in self._head else []
        for section in self._taken:
            lines.append(section.head)
            lines += _kept(section.lines, _TAKEN[section.kind])
            # A bundled section may leave its transport to the first of its group.
            first = tagged if tagged is not None and section.mid in bundle else section
            own = section if section.values("ice-ufrag") else first
            given = _kept(own.lines, _TRANSPORT)
            names = {line.partition(":")[0] for line in given}
            lines += [
                line for line in _kept(self._head, _TRANSPORT) if line.partition(":")[0] not in names
            ] + given
            found = section.values("candidate") or first.values("candidate")
            lines += [f"a=candidate:{one}" for one in _candidates(found, networks)]
            # No a=end-of-candidates: clients are also reached where they come from.
        return "\r\n".join(lines) + "\r\n"

    def _bundle(self) -> list[str]:
        groups = [line.split()[1:] for line in self._head if line.startswith("a=group:BUNDLE ")]
        return groups[0] if groups else []

    def _check(self) -> None:
        try:
            sections = SessionDescription.parse(self.sdp).media
        except Exception as error:
            # The parser raises whatever it stumbles over.
            raise _refused(f"The offer cannot be read: {type(error).__name__}.") from error
        if not all(section.dtls is not None and section.dtls.fingerprints for section in sections):
            raise _refused("The offer has media without a fingerprint (a=fingerprint).")


def _split(text: str) -> tuple[list[str], list[_Section]]:
    head: list[str] = []
    sections: list[_Section] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if not line.startswith("m="):
            (sections[-1].lines if sections else head).append(line)
            continue
        if len(sections) >= _MOST_SECTIONS:
            raise _refused(f"The offer has more media than the {_MOST_SECTIONS} that are allowed at most.")
        read = _HEAD.fullmatch(line)
        if read is None:
            raise _refused(f"The offer cannot be read: its media number {len(sections) + 1} are none.")
        sections.append(_Section(line, read[1], int(read[2])))
    return head, sections


def _kept(lines: Sequence[str], names: Sequence[str]) -> list[str]:
    """The lines with these attributes.

    Raises:
        Refusal: there are too many of one kind, or one cannot be read.
    """
    kept = []
    count: Counter[str] = Counter()
    for line in lines:
        name = line[2:].partition(":")[0]
        if not line.startswith("a=") or name not in names:
            continue
        count[name] += 1
        if count[name] > _MOST_LINES:
            raise _refused(f"The offer has too many a={name}; at most {_MOST_LINES} are allowed.")
        if len(line) > _LONGEST_LINE or not (line.isascii() and line.isprintable()):
            raise _refused(f"The offer cannot be read: a={name}.")
        kept.append(line)
    return kept


def _candidates(values: Sequence[str], networks: Sequence[_Network]) -> list[str]:
    """Those that are tried, each as it is written again here; of the others nothing is left."""
    found: dict[str, None] = {}
    for value in values:
        if len(found) >= MOST_CANDIDATES:
            break
        if (candidate := _candidate(value, networks)) is not None:
            found[candidate] = None
    return list(found)


def _candidate(value: str, networks: Sequence[_Network]) -> str | None:
    bits = value[:_LONGEST_LINE].split()
    # Foundation, component, transport, priority, address, port, "typ", type (RFC 8839 section 5.1).
    if (
        len(bits) < 8
        or bits[1] != "1"
        or bits[2].lower() != "udp"
        or bits[7] not in ("host", "srflx", "relay")
    ):
        return None
    priority, port = (int(bit) if _NUMBER.fullmatch(bit) else 0 for bit in (bits[3], bits[5]))
    if not (0 < priority < 1 << 32 and _FIRST_PORT <= port < 1 << 16):
        return None
    try:
        address = ipaddress.ip_address(bits[4])
    except ValueError:
        return None  # a name
    if not _may_be_tried(address, networks):
        return None
    return f"1 1 udp {priority} {address} {port} typ {bits[7]}"


def _may_be_tried(address: _Address, networks: Sequence[_Network]) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped
        or address.sixtofour
        or address.teredo
        or address.scope_id
        or address.is_site_local
        or any(address in network for network in _TRANSLATED)
        or _is_isatap(address)
    ):
        return False
    if address.is_multicast or address.is_unspecified:
        return False
    return _is_public(address) or any(address in network for network in networks)


def _is_isatap(address: ipaddress.IPv6Address) -> bool:
    """Whether the interface identifier is one of RFC 5214, whatever its two bits for the scope say."""
    return (int(address) >> 32) & 0xFCFF_FFFF == _ISATAP


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _GIVEN_OUT:
        return False
    return address.is_global and not any(address in network for network in _SPECIAL)


def _rejected(section: _Section) -> str:
    """The answer to a section that is not taken."""
    kind, _, profile, formats = section.head.split(" ", 3)
    lines = [f"{kind} 0 {profile} {formats}", "c=IN IP4 0.0.0.0", "a=inactive"]
    if (
        section.mid
        and len(section.mid) <= _LONGEST_MID
        and section.mid.isascii()
        and section.mid.isprintable()
    ):
        lines.append(f"a=mid:{section.mid}")
    return "\r\n".join(lines) + "\r\n"


def _refused(message: str) -> ClientEventError:
    return ClientEventError(message, code="invalid_offer", param="sdp")

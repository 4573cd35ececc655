"""SDP offers: the sections that a call uses, and the answer to all sections.

aiortc gets only a part of an offer: the first audio section and the data channel, and of these only the
lines that a connection needs, each kind up to a bound. All other sections are rejected here with port 0
(RFC 3264 section 6). So a page that adds its camera still has its audio call, nothing is received that the
session does not use, and the work for an offer is linear in its size.

Candidates are addresses that the gateway tries (RFC 8445). Clients try the gateway's addresses themselves,
and get answers to their own address, so few candidates are needed. Candidates that are not public are
ignored unless a setting names their network: otherwise an offer could make the gateway send STUN into
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
"""Characters of an offer; browsers send a few thousand."""
MOST_CANDIDATES = 32
"""Further ones are ignored."""
_MOST_IN_ALL = 2_048
"""Lines of an offer; browsers send a few hundred."""
_MOST_SECTIONS = 16
_MOST_LINES = 64
"""Lines of one attribute in a section."""
_LONGEST_LINE = 1_024
_LONGEST_MID = 64

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NUMBER = re.compile(r"[0-9]{1,10}")
_SECTION = re.compile(r"(?m)^(?=m=)")
_HEAD = re.compile(r"m=([a-z]{1,32}) ([0-9]{1,5}) ([A-Z/]{1,32}) ([!-~ ]{1,512})")
# The attributes that aiortc reads, without those of ICE and DTLS.
_ATTRIBUTES = {
    "audio": (
        *("mid", "rtcp-mux", "rtpmap", "fmtp", "extmap", "ssrc", "msid"),
        *("sendrecv", "sendonly", "recvonly", "inactive"),
    ),
    "application": ("mid", "sctp-port", "sctpmap", "max-message-size"),
}
_TRANSPORT = ("ice-ufrag", "ice-pwd", "ice-options", "fingerprint", "setup")
_FIRST_PORT = 1_024
# The allocated part of IPv6; `is_global` excludes only a part of the rest.
_ALLOCATED = ipaddress.IPv6Network("2000::/3")
# Not public either: relays of 6to4, documentation, and ORCHIDv2, which is not routed.
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.88.99.0/24", "3fff::/20", "2001:20::/28")))
# Addresses of IPv4 inside IPv6: another router decides where a packet goes.
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")))
_ISATAP = 0x5EFE


@dataclass
class _Section:
    """One ``m=`` line and the lines after it."""

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
        """The name of the section; may be empty."""
        return next(iter(self.values("mid")), "")

    @property
    def is_open(self) -> bool:
        """Whether the section is active (RFC 8843 has bundled ones with port 0)."""
        return self.port != 0 or bool(self.values("bundle-only"))

    @property
    def sends(self) -> bool:
        """Whether the client sends, which is the default."""
        return not (self.values("recvonly") or self.values("inactive"))


class Offer:
    """An answerable offer, else ClientEventError; addresses in ``networks`` are tried like public ones."""

    def __init__(self, text: str, networks: Sequence[_Network] = ()) -> None:
        if len(text) > LARGEST:
            raise _refused(f"The offer has {len(text)} characters; at most {LARGEST} are allowed.")
        if text.count("\n") > _MOST_IN_ALL:
            raise _refused(f"The offer has more than {_MOST_IN_ALL} lines.")
        self._head, self._sections = _split(text)
        self._used = self._choose()
        self.sdp = self._reduced(networks)
        """The used part of the offer, for aiortc."""
        self._check()

    def answer(self, answer: str) -> str:
        """Extend aiortc's answer to the used part to an answer to the whole offer."""
        head, *parts = _SECTION.split(answer)
        used = {id(section): part for section, part in zip(self._used, parts, strict=True)}
        return head + "".join(used.get(id(section)) or _rejected(section) for section in self._sections)

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
        mids = [section.mid for section in self._used]
        # aiortc would use the last of several names.
        if any(len(section.values("mid")) > 1 for section in self._used):
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
        for section in self._used:
            lines.append(section.head)
            lines += _select(section.lines, _ATTRIBUTES[section.kind])
            # A bundled section may have its transport in the first section of its group.
            first = tagged if tagged is not None and section.mid in bundle else section
            own = section if section.values("ice-ufrag") else first
            given = _select(own.lines, _TRANSPORT)
            names = {line.partition(":")[0] for line in given}
            lines += [
                line for line in _select(self._head, _TRANSPORT) if line.partition(":")[0] not in names
            ] + given
            found = section.values("candidate") or first.values("candidate")
            lines += [f"a=candidate:{one}" for one in _candidates(found, networks)]
            # No a=end-of-candidates: ICE also finds addresses from which clients send.
        return "\r\n".join(lines) + "\r\n"

    def _bundle(self) -> list[str]:
        groups = [line.split()[1:] for line in self._head if line.startswith("a=group:BUNDLE ")]
        return groups[0] if groups else []

    def _check(self) -> None:
        try:
            sections = SessionDescription.parse(self.sdp).media
        except Exception as error:
            # The parser raises exceptions of many types.
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
            raise _refused(f"The offer cannot be read: its media section {len(sections) + 1} is invalid.")
        sections.append(_Section(line, read[1], int(read[2])))
    return head, sections


def _select(lines: Sequence[str], names: Sequence[str]) -> list[str]:
    """The lines with these attributes; raises ClientEventError for too many of one, or an invalid one."""
    found = []
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
        found.append(line)
    return found


def _candidates(values: Sequence[str], networks: Sequence[_Network]) -> list[str]:
    """The candidates that are tried, in a canonical format."""
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
        return None  # a host name
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
    """Whether the interface identifier is one of RFC 5214, with any value of its two scope bits."""
    return (int(address) >> 32) & 0xFCFF_FFFF == _ISATAP


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _ALLOCATED:
        return False
    return address.is_global and not any(address in network for network in _SPECIAL)


def _rejected(section: _Section) -> str:
    """The answer to a section that the call does not use."""
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

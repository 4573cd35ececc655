"""Settings of telephone calls by SIP."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from parley.protocol import EndingOptions
from parley_gateway.settings_sections import Count, Seconds, check_transfers
from parley_gateway.sip.session_description import CODECS, CodecName, Encryption


def is_tls(url: str) -> bool:
    """Whether an address is reached by TLS."""
    return url.endswith(";transport=tls")


class SipSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telephone calls by SIP: `parley gateway sip`."""

    listen: Annotated[
        str, Meta(pattern=r"^(sip:[0-9a-fA-F.:\[\]]+:[0-9]{1,5}(;transport=(udp|tcp|tls))?)?$")
    ] = ""
    """Where calls come in: `sip:10.0.0.5:5060` (UDP, TCP), `sip:10.0.0.5:5061;transport=tls`."""
    certificate: str = ""
    """PEM file with the certificate chain and its private key, for TLS."""
    authorities: str = ""
    """PEM file with the authorities of a trunk's certificate. Empty: those of the system."""
    allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks of which calls are taken: `203.0.113.0/24`. Calls from others get 403."""
    trunk: Annotated[str, Meta(pattern=r"^(sip:[A-Za-z0-9.:\[\]-]+(;transport=(udp|tcp|tls))?)?$")] = ""
    """Where numbers are called: `sip:trunk.example.com;transport=tls`. Empty: no calls are made."""
    username: str = ""
    """The account at the trunk."""
    password_file: str = ""
    """File with its password."""
    register: bool = False
    """Whether the account is registered at the trunk (REGISTER), which then knows where calls go."""
    register_s: Count = 300
    """How long a registration is valid; it is renewed before."""
    caller: str = ""
    """Number that called people see: `+493012345678`. Empty: `username`."""
    codecs: tuple[CodecName, ...] = ("opus", "PCMU", "PCMA")
    """Codecs, the preferred ones first."""
    srtp: Encryption = "optional"
    """Encryption of audio (SRTP, keys by SDES). `required`: calls without it get 488. Its keys are
    secret only where signalling goes by TLS."""
    address: str = ""
    """Address that peers send requests and audio to, behind NAT. Empty: that of `listen`."""
    ports: Annotated[str, Meta(pattern="^[0-9]{1,5}-[0-9]{1,5}$")] = "20000-20999"
    """UDP ports of audio; a call takes two."""
    agent: str = ""
    """The agent of numbers that no agent names. Empty: the server's own."""
    language: str = "en"
    """The language of calls to it."""
    ending: EndingOptions = EndingOptions()
    """How the language model can end or transfer the call, each target with its number or address in `to`."""
    ring_s: Seconds = 45.0
    """How long a called telephone may ring."""
    transfer_s: Seconds = 40.0
    """How long the target of a transfer may ring; then the call goes back to the agent."""
    farewell_s: Seconds = 5.0
    """How long the rest of the agent's audio may play after the agent has hung up."""

    def __post_init__(self) -> None:
        check_transfers(self.ending)
        if is_tls(self.listen) and not self.certificate:
            raise ValueError("listen: TLS needs a certificate")
        if is_tls(self.trunk) and not is_tls(self.listen):
            raise ValueError("trunk: TLS needs it in listen, too: sip:10.0.0.5:5061;transport=tls")
        if self.register and not (self.trunk and self.username):
            raise ValueError("register needs trunk and username")
        if not self.codecs or len(set(self.codecs)) < len(self.codecs):
            raise ValueError(f"codecs: at least one of {', '.join(CODECS)}, each once")
        if self.address:
            ip_address(self.address)
        elif self.host and ip_address(self.host).is_unspecified:
            raise ValueError("listen: at all addresses it needs `address`, the one that peers use")
        _ = self.networks, self.port_range

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`allow`, read."""
        return tuple(map(ip_network, self.allow))

    @property
    def port_range(self) -> range:
        """`ports`, read."""
        first, last = map(int, self.ports.split("-"))
        if not 1_024 <= first <= last <= 65_535:
            raise ValueError("ports: the first and the last one, from 1024 to 65535")
        return range(first + first % 2, last + 1, 2)  # the odd ones are those of RTCP (RFC 3550, 11)

    @property
    def host(self) -> str:
        """The address of `listen`."""
        return urlsplit(self.listen.partition(";")[0].replace(":", "://", 1)).hostname or ""

    @property
    def contact(self) -> str:
        """Where peers send requests."""
        return self.listen.replace(self.host, self.address, 1) if self.address else self.listen

    @property
    def trunk_host(self) -> str:
        """Host, and port if it has one, of `trunk`."""
        return self.trunk.partition(":")[2].partition(";")[0]

    def admits(self, address: str) -> bool:
        """Whether calls of an address are taken."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.networks)

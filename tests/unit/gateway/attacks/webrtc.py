"""SDP offers as an attacker would send them; each is answered with a 4xx, or with one audio track."""

from __future__ import annotations

from dataclasses import dataclass

FINGERPRINT = "sha-256 " + ":".join(["AB"] * 32)
SESSION = ("v=0", "o=- 4611731400430051336 2 IN IP4 127.0.0.1", "s=-", "t=0 0")
TRANSPORT = (
    "a=ice-ufrag:4ZcD",
    "a=ice-pwd:2/1muCWoOi3uLifh0NuRHlp5",
    f"a=fingerprint:{FINGERPRINT}",
    "a=setup:actpass",
)
OPUS = ("a=rtcp-mux", "a=rtpmap:111 opus/48000/2", "a=fmtp:111 minptime=10;useinbandfec=1")
VP8 = ("a=rtcp-mux", "a=rtpmap:96 VP8/90000", "a=rtcp-fb:96 nack pli")
# TEST-NET-3 is not public, as documentation is not: what is tried has to be.
PUBLIC = "8.8.4.4"


@dataclass(frozen=True)
class OfferAttack:
    """One offer."""

    name: str
    sdp: str


def audio(mid: str = "0", *more: str, head: str = "m=audio 9 UDP/TLS/RTP/SAVPF 111") -> tuple[str, ...]:
    """A section as a browser has it."""
    return (head, "c=IN IP4 0.0.0.0", f"a=mid:{mid}", "a=sendrecv", *TRANSPORT, *OPUS, *more)


def video(mid: str = "1", *more: str) -> tuple[str, ...]:
    """A camera."""
    head = "m=video 9 UDP/TLS/RTP/SAVPF 96"
    return (head, "c=IN IP4 0.0.0.0", f"a=mid:{mid}", "a=sendrecv", *TRANSPORT, *VP8, *more)


def data(mid: str = "2", *more: str) -> tuple[str, ...]:
    """A data channel."""
    head = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"
    ports = ("a=sctp-port:5000", "a=max-message-size:262144")
    return (head, "c=IN IP4 0.0.0.0", f"a=mid:{mid}", *TRANSPORT, *ports, *more)


def offer(*sections: tuple[str, ...], session: tuple[str, ...] = (), bundle: str | None = None) -> str:
    """A whole offer; its sections are bundled unless ``bundle`` says otherwise."""
    if bundle is None:
        mids = [line[6:] for section in sections for line in section if line.startswith("a=mid:")]
        bundle = " ".join(mids)
    lines = [*SESSION, f"a=group:BUNDLE {bundle}", *session]
    return "\r\n".join([*lines, *(line for section in sections for line in section)]) + "\r\n"


def candidate(address: str, port: object = 50_000, kind: str = "host", component: object = 1) -> str:
    """A line for an address."""
    return f"a=candidate:1 {component} udp 2130706431 {address} {port} typ {kind}"


def _with(*lines: str) -> str:
    return offer(audio("0", *lines), data("1"))


def offer_corpus() -> list[OfferAttack]:
    """All of them."""
    plain = offer(audio("0"), data("1"))
    return [OfferAttack(name, sdp) for name, sdp in (_sections() | _candidates() | _lines(plain)).items()]


def _sections() -> dict[str, str]:
    return {
        "audio-and-video": offer(audio("0"), video("1"), data("2")),
        "video-first": offer(video("0"), audio("1"), data("2")),
        "video-only": offer(video("0"), data("1")),
        "data-only": offer(data("0")),
        "no-sections": offer(),
        "two-microphones": offer(audio("0"), audio("1"), data("2")),
        "sixteen-microphones": offer(*(audio(str(number)) for number in range(16))),
        "seventeen-sections": offer(*(audio(str(number)) for number in range(17))),
        "hundreds-of-sections": offer(*(video(str(number)) for number in range(150)), audio("x")),
        "sections-without-lines": "v=0\r\n" + "m=audio 9 RTP/AVP 0\r\n" * 2_000,
        "three-data-channels": offer(audio("0"), data("1"), data("2"), data("3")),
        "all-closed": offer(audio("0", head="m=audio 0 UDP/TLS/RTP/SAVPF 111"), data("1")),
        "two-names": offer(audio("0", "a=mid:7"), data("1")),
        "same-names": offer(audio("0"), data("0")),
        "endless-name": offer(audio("n" * 5_000), data("1")),
        "no-names": offer(audio("0"), data("1")).replace("a=mid:0\r\n", "").replace("a=mid:1\r\n", ""),
        "endless-bundle": offer(audio("0"), data("1"), bundle="0 1 " * 12_000),
        "bundle-of-others": offer(audio("0"), data("1"), bundle="x y z"),
        "unknown-kind": offer(("m=" + "q" * 200 + " 9 X 1",), audio("0")),
        "image-and-text": offer(("m=image 9 TCP t38",), ("m=text 9 RTP/AVP 98",), audio("0"), data("1")),
    }


def _candidates() -> dict[str, str]:
    internal = (
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "127.0.0.1",
        "0.0.0.1",
    )
    mapped = ("::1", "fe80::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::a00:1")
    tunnels = ("2002:a00:1::1", "2001:0:a00:1::1", "::ffff:0:10.0.0.1", "fec0::1", "::")
    return {
        "thousand-candidates": _with(*(candidate(PUBLIC, port) for port in range(40_000, 41_000))),
        "internal-candidates": _with(*map(candidate, internal)),
        "internal-candidates-of-ipv6": _with(*map(candidate, mapped + tunnels)),
        "multicast-candidates": _with(
            *map(candidate, ("224.0.0.251", "239.1.1.1", "255.255.255.255", "ff02::fb"))
        ),
        "mdns-candidates": _with(
            *(candidate(f"{number:08x}-0000-4000-8000-000000000000.local") for number in range(300))
        ),
        "names-as-candidates": _with(
            *map(candidate, ("localhost", "metadata.google.internal", "a" * 300 + ".test"))
        ),
        "system-ports": _with(*(candidate(PUBLIC, port) for port in (0, 1, 22, 53, 123, 161, 389, 1_023))),
        "giant-ports": _with(
            *(candidate(PUBLIC, port) for port in (65_536, 10**30, -1, "9" * 900, "0x50", "٣"))
        ),
        "giant-numbers": _with(f"a=candidate:1 1 udp {'9' * 900} {PUBLIC} 50000 typ host"),
        "other-components": _with(
            *(candidate(PUBLIC, 50_000, component=one) for one in (0, 2, 256, -1, "x"))
        ),
        "candidates-over-tcp": _with(f"a=candidate:1 1 tcp 99 {PUBLIC} 443 typ host tcptype passive"),
        "unknown-candidates": _with(
            candidate(PUBLIC, 50_000, "nowhere"), "a=candidate:", "a=candidate", "a=candidate:1 1"
        ),
        "candidates-of-the-whole-session": offer(audio("0"), session=(candidate("10.0.0.1"),)),
        "candidates-ended": _with("a=end-of-candidates", candidate(PUBLIC), "a=end-of-candidates"),
    }


def _lines(plain: str) -> dict[str, str]:
    return {
        "endless-line": plain + "a=x:" + "y" * 60_000 + "\r\n",
        "too-large": plain + "a=x:" + "y" * 70_000 + "\r\n",
        "endless-known-line": _with("a=fmtp:111 " + "x=1;" * 12_000),
        "thousand-codecs": _with(*(f"a=rtpmap:{96 + number % 30} opus/48000/2" for number in range(1_000))),
        "codecs-and-feedback": _with(
            *(f"a=rtpmap:{number} opus/48000/2" for number in range(1_000, 1_060)), *["a=rtcp-fb:* nack"] * 60
        ),
        "thousand-sources": _with(*(f"a=ssrc:{number} cname:x" for number in range(2_000))),
        "thousand-extensions": _with(*["a=extmap:1 urn:ietf:params:rtp-hdrext:sdes:mid"] * 1_000),
        "thousand-fingerprints": _with(*[f"a=fingerprint:{FINGERPRINT}"] * 400),
        "bogus-fingerprints": plain.replace(FINGERPRINT, "md5 00:zz"),
        "empty-fingerprints": plain.replace(f"a=fingerprint:{FINGERPRINT}", "a=fingerprint"),
        "no-fingerprints": plain.replace(f"a=fingerprint:{FINGERPRINT}\r\n", ""),
        "unknown-setup": plain.replace("a=setup:actpass", "a=setup:whatever"),
        "no-setup": plain.replace("a=setup:actpass\r\n", ""),
        "no-credentials": plain.replace("a=ice-ufrag:4ZcD\r\n", ""),
        "two-credentials": plain.replace("a=ice-ufrag:4ZcD", "a=ice-ufrag:one1\r\na=ice-ufrag:two2"),
        "endless-credentials": plain.replace("4ZcD", "u" * 20_000),
        "ice-lite": plain.replace("t=0 0\r\n", "t=0 0\r\na=ice-lite\r\n"),
        "no-common-codec": plain.replace("opus/48000/2", "speex/8000"),
        "silent-rates": plain.replace("opus/48000/2", "opus/0/0"),
        "giant-channels": plain.replace("opus/48000/2", "opus/48000/" + "9" * 900),
        "formats-of-nothing": _with("a=fmtp:99 x=1", "a=fmtp:x", "a=fmtp", "a=rtpmap", "a=rtpmap:1"),
        "payload-types": plain.replace("SAVPF 111", "SAVPF " + "111 " * 120).replace(
            "a=rtpmap:111", "a=rtpmap:99999"
        ),
        "giant-sctp-port": plain.replace("a=sctp-port:5000", "a=sctp-port:" + "9" * 900),
        "giant-messages": plain.replace("262144", "9" * 900),
        "negative-messages": plain.replace("262144", "-1"),
        "no-sctp-port": plain.replace("a=sctp-port:5000\r\n", ""),
        "old-sctp": plain.replace("UDP/DTLS/SCTP webrtc-datachannel", "DTLS/SCTP x"),
        "control-characters": _with("a=msid:\x00\x1b[2J \x85\u2028a=candidate:1 1 udp 1 10.0.0.1 9 typ host"),
        "lines-inside-of-lines": _with("a=msid:x\x0bm=video 9 UDP/TLS/RTP/SAVPF 96\x0ca=mid:9"),
        "not-ascii": _with("a=msid:\U0001f600 \ud7ff"),
        "only-line-feeds": plain.replace("\r\n", "\n"),
        "only-carriage-returns": plain.replace("\r\n", "\r"),
        "truncated-in-a-head": plain[: plain.index("m=application") + 9],
        "truncated-in-a-line": plain[: plain.index("a=ice-pwd") + 12],
        "nothing": "",
        "line-feeds-only": "\r\n" * 30_000,
        "not-sdp": "GET / HTTP/1.1\r\n\r\n",
    }

"""SDP offers: the used sections, the tried addresses, and attacks."""

import asyncio
import gc
import threading
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path

import pytest
from aiortc import RTCPeerConnection
from aiortc.sdp import SessionDescription
from listening_gateway import until
from rtc_client import calling, post_offer
from traced_lines import lines_of
from webrtc import PUBLIC, audio, candidate, data, offer, offer_corpus, video

from parley_gateway.apis.realtime.server_events import ClientEventError
from parley_gateway.apis.realtime.webrtc.offers import LARGEST, MOST_CANDIDATES, Offer


def tried(*lines, networks=()):
    """The addresses that the gateway tries of an offer with these lines."""
    read = Offer(offer(audio("0", *lines), data("1")), [ip_network(one) for one in networks])
    return [(one.ip, one.port) for one in SessionDescription.parse(read.sdp).media[0].ice_candidates]


def sections(sdp):
    """Of each: what it is, and whether it was taken."""
    heads = [line for line in sdp.splitlines() if line.startswith("m=")]
    return [(head[2:].split()[0], head.split()[1] != "0") for head in heads]


def resources():
    """The numbers of sockets, tasks and threads."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(one.readlink()))
    sockets = sum(link.startswith("socket:") for link in links)
    return sockets, len(asyncio.all_tasks()), threading.active_count()


async def test_every_attack_is_refused_or_gets_one_audio_track_and_leaves_nothing(gateway):
    one = await gateway(realtime={"ice_s": 0.05})
    attacks = offer_corpus()
    assert len(attacks) >= 25
    assert len({attack.name for attack in attacks}) == len(attacks)
    await post_offer(one.http, offer(audio()))
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("rtc_")])
    before = resources()
    taken = []
    for attack in attacks:
        answer = await post_offer(one.http, attack.sdp.encode())
        assert answer.status_code == 201 or 400 <= answer.status_code < 500, (attack.name, answer.text)
        if answer.status_code == 201:
            taken.append(attack.name)
            open_ = [kind for kind, is_open in sections(answer.text) if is_open]
            assert open_.count("audio") == 1, attack.name
            assert set(open_) <= {"audio", "application"}, attack.name
            assert len(open_) <= 2, attack.name
            assert len(sections(answer.text)) == len(sections(attack.sdp)), attack.name
        else:
            assert answer.json()["error"]["code"] == "invalid_offer", attack.name
    assert {"audio-and-video", "video-first", "thousand-candidates", "two-microphones"} <= set(taken)
    assert {"video-only", "no-fingerprints", "hundreds-of-sections", "too-large"}.isdisjoint(taken)
    await until(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))
    gc.collect()
    # Not isinstance: other libraries' objects may warn when their __class__ is read.
    peers = [found for found in gc.get_objects() if issubclass(type(found), RTCPeerConnection)]
    assert {peer.signalingState for peer in peers} <= {"closed"}


async def test_a_page_that_adds_its_camera_has_its_audio_call(gateway):
    one = await gateway()
    async with calling(one.http, camera=video("camera")) as client:
        assert sections(client.answer) == [("audio", True), ("application", True), ("video", False)]
        assert "a=mid:camera" in client.answer
        assert "camera" not in next(line for line in client.answer.splitlines() if "BUNDLE" in line)
        streams = one.agents[0].streams
        await until(lambda: streams and sum(len(frame.audio) for frame in streams[0].seen) > 8_000)


def test_an_answer_has_the_sections_of_the_offer_in_their_order():
    read = Offer(offer(video("v"), audio("a"), audio("b"), data("d")))
    assert [section.kind for section in SessionDescription.parse(read.sdp).media] == ["audio", "application"]
    answer = read.answer(
        "v=0\r\na=group:BUNDLE a d\r\nm=audio 7 X 111\r\na=mid:a\r\nm=application 7 X x\r\na=mid:d\r\n"
    )
    assert sections(answer) == [("video", False), ("audio", True), ("audio", False), ("application", True)]
    assert [line for line in answer.splitlines() if line.startswith("a=mid")] == [
        f"a=mid:{mid}" for mid in "vabd"
    ]
    assert "m=video 0 UDP/TLS/RTP/SAVPF 96" in answer


def test_the_microphone_is_preferred_to_a_section_that_only_listens():
    listening = tuple("a=recvonly" if line == "a=sendrecv" else line for line in audio("0"))
    read = Offer(offer(listening, audio("1")))
    assert SessionDescription.parse(read.sdp).media[0].rtp.muxId == "1"


def test_a_bundled_section_may_leave_its_transport_to_the_first():
    bare = (
        "m=audio 0 UDP/TLS/RTP/SAVPF 111",
        "a=mid:1",
        "a=bundle-only",
        "a=rtcp-mux",
        "a=rtpmap:111 opus/48000/2",
    )
    read = Offer(offer(video("0", candidate(PUBLIC)), bare))
    (media,) = SessionDescription.parse(read.sdp).media
    assert (media.ice.usernameFragment, len(media.dtls.fingerprints)) == ("4ZcD", 1)
    assert [one.ip for one in media.ice_candidates] == [PUBLIC]


def test_tried_candidates_are_bounded():
    lines = [candidate(PUBLIC, port) for port in range(40_000, 41_000)]
    assert len(tried(*lines)) == MOST_CANDIDATES
    assert len(tried(*lines[:2] * 500)) == 2


@pytest.mark.parametrize(
    "address",
    (
        "10.0.0.1 172.16.0.1 192.168.1.1 100.64.0.1 169.254.169.254 127.0.0.1 0.0.0.1 224.0.0.251 "
        "255.255.255.255 240.0.0.1 ::1 fe80::1 fe80::1%eth0 fd00::1 ff02::fb ::ffff:10.0.0.1 ::ffff:8.8.4.4 "
        "::10.0.0.1 64:ff9b::a00:1 2002:a00:1::1 2001:0:a00:1::1 2400::5efe:8.8.4.4 2400::200:5efe:a00:1 "
        "2400::300:5efe:8.8.4.4 192.88.99.1 3fff::1 3fff:fff::1 5f00::1 4000::1 100:0:0:1::1 2001:20::1 "
        "2001:2f::1 localhost router.local 0a000001.local example.com 8.8.4 0x08080404"
    ).split(),
)
def test_addresses_that_are_not_public_and_names_are_not_tried(address):
    assert tried(candidate(address), candidate(PUBLIC)) == [(PUBLIC, 50_000)]


@pytest.mark.parametrize("address", ["2400::5eff:808:404", "2001:30::1", "3ffe::1", "192.88.98.255"])
def test_their_neighbours_are_public(address):
    assert tried(candidate(address)) == [(address, 50_000)]


def test_networks_may_be_allowed():
    lines = [candidate("10.1.2.3"), candidate("10.2.0.1"), candidate("fd00::7"), candidate("224.0.0.1")]
    networks = ["10.1.0.0/16", "fd00::/8", "224.0.0.0/4"]
    assert tried(*lines, networks=networks) == [("10.1.2.3", 50_000), ("fd00::7", 50_000)]


@pytest.mark.parametrize("port", [0, 53, 1_023, 65_536, "9" * 400, "-1", "٣٣٣٣"])
def test_ports_of_system_services_are_not_tried(port):
    assert tried(candidate(PUBLIC, port)) == []


def work(sdp):
    """Lines of Python that reading an offer takes."""

    def read():
        with suppress(ClientEventError):
            Offer(sdp)

    return lines_of(read)


@pytest.mark.parametrize(
    "line",
    [
        candidate("10.0.0.1"),
        candidate(PUBLIC),
        "a=ssrc:{} cname:x",
        "a=rtpmap:111 opus/48000/2",
        "a=rtcp-fb:* nack",
        "a=x:y",
        "a=mid:{}",
        "a=bundle-only",
        "m=video 9 UDP/TLS/RTP/SAVPF 96",
    ],
)
def test_the_work_of_an_offer_grows_with_its_size_only(line):
    def sized(count):
        lines = [line.format(number) for number in range(count)]
        return offer(audio("0"), data("1"), (*video("2"), *lines), bundle=" ".join(map(str, range(count))))

    once, twice = work(sized(400)), work(sized(800))
    assert twice < 2.2 * once
    most = work(
        offer(audio("0", *[line.format(number) for number in range(LARGEST // (len(line) + 4))]), data("1"))
    )
    assert most < 300_000

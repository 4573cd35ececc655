"""Parts of telephone calls: packets in order, session descriptions, settings, and who has answered."""

from contextlib import suppress

import numpy as np
import pytest

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.settings import load_settings
from parley_gateway.sip.answering_machine import AnswerDetection
from parley_gateway.sip.rtp import JitterBuffer
from parley_gateway.sip.session_description import NotAcceptableError, answer, make_offer, read

ALL = ("opus", "PCMU", "PCMA")
OFFER = """v=0
o=- 1 1 IN IP4 192.0.2.7
s=-
c=IN IP4 192.0.2.7
t=0 0
m=audio 4000 {profile} {types}
{lines}
m=video 4002 RTP/AVP 31
a=sendonly
"""


def offer(types="0", lines="", profile="RTP/AVP"):
    return OFFER.format(types=types, lines=lines, profile=profile)


# --- packets ----------------------------------------------------------------------------------


def play(numbers, count):
    """Push packets, each with its number as payload, and take so many."""
    buffer = JitterBuffer()
    for number in numbers:
        buffer.push(number % 65_536, str(number).encode())
    return [buffer.pop() for _ in range(count)], buffer


@pytest.mark.parametrize("first", [0, 7, 65_534, 40_000])
def test_packets_are_put_in_order_also_where_numbers_wrap_around(first):
    order = [first + step for step in (0, 2, 1, 4, 3)]
    played, buffer = play(order, 5)
    assert played == [str(number).encode() for number in sorted(order)]
    assert buffer.lost == 0


def test_lost_packets_are_reported_where_they_were_due():
    assert play([5, 6, 8, 9], 5)[0] == [b"5", b"6", None, b"8", b"9"]


def test_playing_waits_for_a_second_packet():
    buffer = JitterBuffer()
    buffer.push(1, b"1")
    assert buffer.pop() is None
    buffer.push(2, b"2")
    assert [buffer.pop(), buffer.pop()] == [b"1", b"2"]


def test_late_packets_and_those_of_before_are_dropped():
    _, buffer = play([1, 2, 3], 2)
    buffer.push(1, b"late")
    assert buffer.pop() == b"3"


def test_a_burst_is_cut_to_its_newest_packets():
    assert play(range(11), 3)[0] == [b"9", b"10", None]


def test_another_stream_begins_anywhere():
    _, buffer = play([100, 101], 2)
    for number in (30_000, 30_001):
        buffer.push(number, str(number).encode())
    assert buffer.pop() == b"30000"


# --- session descriptions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "lines", "codec", "payload_type"),
    [
        ("8 0", "", "PCMA", 8),
        ("18 3 0", "a=rtpmap:18 G729/8000", "PCMU", 0),
        ("111 0", "a=rtpmap:111 OPUS/48000/2", "opus", 111),
        ("97 8", "a=rtpmap:97 PCMU/8000/1", "PCMU", 97),
    ],
)
def test_the_first_codec_of_the_peer_that_is_known_is_used(types, lines, codec, payload_type):
    theirs = read(offer(types, lines), ALL, "optional")
    assert (theirs.codec, theirs.payload_type) == (codec, payload_type)
    assert f"m=audio 6000 RTP/AVP {payload_type}" in answer(theirs, "192.0.2.1", 6_000, key=b"").describe()


@pytest.mark.parametrize(
    ("lines", "sends", "receives", "own"),
    [
        ("a=sendonly", True, False, "recvonly"),
        ("a=recvonly", False, True, "sendonly"),
        ("a=inactive", False, False, "inactive"),
        ("c=IN IP4 0.0.0.0", False, False, "inactive"),
        ("", True, True, "sendrecv"),
    ],
)
def test_a_held_call_is_held_on_both_sides(lines, sends, receives, own):
    theirs = read(offer("0", lines), ALL, "optional")
    assert (theirs.sends, theirs.receives) == (sends, receives)
    assert f"a={own}\r\n" in answer(theirs, "192.0.2.1", 6_000, key=b"").describe()


def test_streams_that_are_not_taken_are_refused_in_their_places():
    both = "m=audio 9 RTP/SAVP 0\na=rtpmap:0 PCMU/8000\nm=image 9 udptl t38\nm=audio 4000"
    theirs = read(offer().replace("m=audio 4000", both), ALL, "optional")
    described = answer(theirs, "192.0.2.1", 6_000, key=b"", origin="7 2").describe()
    assert [line for line in described.splitlines() if line[:2] in ("o=", "m=")] == [
        "o=- 7 2 IN IP4 192.0.2.1",
        "m=audio 0 RTP/SAVP 0",
        "m=image 0 udptl t38",
        "m=audio 6000 RTP/AVP 0",
        "m=video 0 RTP/AVP 31",
    ]


def test_keys_have_the_payload_type_and_clock_of_the_peer():
    lines = "a=rtpmap:96 opus/48000/2\na=rtpmap:100 telephone-event/8000\na=rtpmap:110 telephone-event/48000"
    theirs = read(offer("96 100 110", lines), ALL, "optional")
    assert (theirs.event_type, theirs.event_clock_hz) == (110, 48_000)
    assert read(offer("0 100 110", lines), ALL, "optional").event_type == 100


def test_an_offer_is_understood_and_answered_with_another_key():
    described, key = make_offer("2001:db8::1", 5_000, ALL, encrypts=True)
    theirs = read(described, ("PCMU",), "required")
    assert (theirs.host, theirs.port, theirs.codec, theirs.key) == ("2001:db8::1", 5_000, "PCMU", key)
    own = answer(theirs, "192.0.2.1", 6_000, key=b"")
    assert own.key not in (key, b"")
    assert read(own.describe(), ALL, "required").key == own.key


@pytest.mark.parametrize(
    ("sdp", "encryption"),
    [
        ("", "optional"),
        ("m=audio", "optional"),
        ("v=0\nm=video 1 RTP/AVP 31", "optional"),
        (offer("18", "a=rtpmap:18 G729/8000"), "optional"),
        (offer().replace("4000", "0"), "optional"),
        (offer().replace("4000", "70000"), "optional"),
        (offer().replace("192.0.2.7", "trunk.example"), "optional"),
        (offer(profile="UDP/TLS/RTP/SAVPF"), "optional"),
        (offer().replace("m=video", "m=v\tdeo"), "optional"),
        (offer("9" * 5_000), "optional"),
        (offer("٣"), "optional"),
        (offer() + "m=video 1 RTP/AVP 31\n" * 15, "optional"),
        (offer(), "required"),
        (offer(profile="RTP/SAVP"), "optional"),
        (offer(lines="a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAA", profile="RTP/SAVP"), "optional"),
        (
            offer(lines=f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{'A' * 40}|1:4", profile="RTP/SAVP"),
            "optional",
        ),
    ],
)
def test_descriptions_that_are_not_acceptable(sdp, encryption):
    with pytest.raises(NotAcceptableError):
        read(sdp, ALL, encryption)


def test_no_description_breaks_the_reader():
    text, random = offer("0 96 101", "a=rtpmap:96 opus/48000/2\na=sendrecv"), np.random.default_rng(3)
    for _ in range(500):
        cut = sorted(random.integers(0, len(text), 2))
        with suppress(NotAcceptableError):
            read(text[: cut[0]] + text[cut[1] :], ALL, "optional")


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sip",
    [
        {"listen": "10.0.0.5:5060"},
        {"listen": "sip:0.0.0.0:5060"},
        {"listen": "sip:10.0.0.5:5061;transport=tls"},
        {"listen": "sip:10.0.0.5:5060", "trunk": "sip:trunk.example.com;transport=tls"},
        {"register": True},
        {"ports": "30000-20000"},
        {"ports": "80-90"},
        {"allow": ["trunk.example"]},
        {"codecs": []},
        {"codecs": ["PCMU", "PCMU"]},
        {"address": "voice.example"},
        {"ending": {"transfers": [{"name": "desk"}]}},
    ],
)
def test_settings_that_cannot_be_used(sip):
    with pytest.raises(GatewaySettingsError):
        load_settings(flags={"sip": sip})


def test_an_address_behind_nat_is_what_peers_get():
    sip = load_settings(flags={"sip": {"listen": "sip:10.0.0.5:5060", "address": "203.0.113.9"}}).sip
    assert (sip.host, sip.contact) == ("10.0.0.5", "sip:203.0.113.9:5060")
    assert [sip.admits(one) for one in ("127.0.0.1", "10.0.0.1", "", "x")] == [True, False, False, False]


# --- who has answered -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("started", 200), ("stopped", 900), ("time", 1_900)], None),
        ([("started", 200), ("stopped", 900), ("time", 2_200)], "human"),
        ([("started", 200), ("time", 2_500)], None),
        ([("started", 200), ("time", 2_700)], "machine"),
        (
            [("started", 0), ("stopped", 1_000), ("started", 1_500), ("stopped", 2_600), ("time", 2_700)],
            "machine",
        ),
        ([("time", 4_900)], None),
        ([("time", 5_000)], "unknown"),
        ([("started", 100), ("said", "You have reached the voicemail of Anna")], "machine"),
        ([("started", 100), ("said", "Hello, this is Anna")], None),
    ],
)
def test_who_has_answered_is_decided_by_the_first_seconds(events, expected):
    detection = AnswerDetection()
    for kind, value in events:
        match kind:
            case "started":
                detection.on_speech_started(value)
            case "stopped":
                detection.on_speech_stopped(value)
            case "said":
                detection.on_transcript(value)
            case "time":
                detection.on_time(value)
    assert detection.answered_by == expected

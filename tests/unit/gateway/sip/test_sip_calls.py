"""Telephone calls that come in by SIP: audio, keys, interruptions, transfers and their ends."""

import asyncio
import socket

import numpy as np
import pytest
from aiortc.rtp import RtpPacket
from telephone import HOST, TONE, Telephone, until

from parley.protocol import Closed, Dtmf, Interrupted, Paused, Playback, Resumed, Transfer

LONG = np.tile(TONE, 100)  # 2 s


async def received(agent, kind):
    while not isinstance(message := await agent.next_message(), kind):
        pass
    return message


async def heard(agent, count=3_200):
    """The loudness of what the agent hears, once there is so much of it."""
    await until(lambda: sum(map(len, agent.audio)) >= count)
    return int(np.abs(np.concatenate(agent.audio).astype(int)).max())


async def test_both_sides_hear_each_other_and_played_audio_is_reported(call):
    async with call() as (phone, agent, _):
        assert (await agent.start).output_sample_rate == 8_000
        phone.says = [TONE] * 50
        assert await heard(agent, 8_000) == pytest.approx(9_000, rel=0.2)
        agent.say()
        await phone.hears(14)
        played = [(await received(agent, Playback)).played_ms for _ in range(3)]
        assert played[-1] == 300


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"codecs": ("PCMA",)}, 8_000),
        ({"codecs": ("opus",)}, 48_000),
        ({"codecs": ("PCMU",), "srtp": "required"}, 8_000),
        ({"codecs": ("opus",), "srtp": "required"}, 48_000),
    ],
)
async def test_codecs_and_encryption_are_those_of_the_telephone(call, settings, rate):
    async with call(telephone=settings) as (phone, agent, _):
        assert (await agent.start).output_sample_rate == rate
        phone.says = [TONE] * 50
        assert await heard(agent, 8_000) == pytest.approx(9_000, rel=0.25)
        phone.press("7")
        assert (await received(agent, Dtmf)).digits == "7"


async def test_a_key_is_pressed_once_however_many_packets_say_so(call):
    async with call() as (phone, agent, _):
        phone.says = [TONE] * 10
        for key in "#05A":
            phone.press(key)
            await asyncio.sleep(0.05)
        assert [(await received(agent, Dtmf)).digits for _ in range(4)] == list("#05A")


async def test_an_interruption_stops_the_voice_at_once(call):
    async with call() as (phone, agent, _):
        agent.say(LONG)
        await phone.hears(5)
        agent.stream.say(Paused(turn=1, response_id="r1", at_ms=0))
        await phone.hears_nothing()
        agent.stream.say(Resumed(turn=1, response_id="r1", reason="noise"))
        count = sum(loudness > 1_000 for loudness in phone.heard)
        await phone.hears(count + 5)
        agent.stream.say(Interrupted(turn=1, response_id="r1", played_ms=200, spoken_text=""))
        agent.say(LONG)  # more of what was interrupted
        await phone.hears_nothing(30)


async def test_the_caller_hangs_up(call):
    async with call() as (phone, agent, gateway):
        phone.hang_up()
        await asyncio.wait_for(agent.over.wait(), 10)
        await phone.state("terminated")
        await gateway.idle()


async def test_the_agent_hangs_up_when_its_last_words_were_played(call):
    async with call() as (phone, agent, _):
        agent.say(LONG[:8_000])
        agent.stream.say(Closed(reason="agent_ended"))
        agent.stream.end()
        await phone.hears(45)
        await phone.state("terminated")


async def test_a_caller_gives_up_before_the_agent_is_there(telephones):
    async with telephones(opening_s=1.0) as gateway, Telephone().on() as phone:
        phone.call(gateway.url)
        await phone.state("proceeding")
        phone.give_up()
        await phone.state("terminated")
        await gateway.idle()


@pytest.mark.parametrize(
    ("sip", "telephone", "status"),
    [
        ({"allow": ["192.0.2.0/24"]}, {}, 403),
        ({"codecs": ["PCMA"]}, {}, 488),
        ({"srtp": "required"}, {}, 488),
        ({"srtp": "off"}, {"srtp": "required"}, 488),
    ],
)
async def test_calls_that_are_not_wanted_are_refused(telephones, sip, telephone, status):
    async with telephones(sip=sip) as gateway, Telephone(**telephone).on() as phone:
        phone.call(gateway.url)
        assert (await phone.state("terminated")).status == status
        assert not gateway.agents


async def test_a_full_gateway_refuses_calls_for_now(call):
    async with call(calls={"limit": 1}) as (_, _, gateway), Telephone().on() as other:
        other.call(gateway.url)
        assert (await other.state("terminated")).status == 503


async def test_a_call_on_hold_hears_nothing_and_goes_on(call):
    async with call() as (phone, agent, _):
        phone.hold("sendonly")
        await phone.until(lambda event: event.name == "invite_response" and len(phone.ready()) == 2)
        phone.heard.clear()
        phone.hold("sendrecv")
        await phone.until(lambda event: event.name == "invite_response" and len(phone.ready()) == 3)
        agent.say(LONG)
        await phone.hears(5)


async def test_a_transfer_ends_the_call_when_the_other_has_answered(call):
    async with call() as (phone, agent, _):
        to = Transfer(name="desk", to="+493012345678")
        agent.stream.say(Closed(reason="transferred", transfer=to))
        agent.stream.end()
        await phone.until(lambda event: event.name == "refer")
        assert phone.refer_to == f"sip:+493012345678@{HOST}"
        phone.notify("SIP/2.0 180 Ringing")
        phone.notify("SIP/2.0 200 OK")
        assert (await phone.state("terminated")).status == 200


async def test_a_caller_goes_back_to_the_agent_where_a_transfer_fails(call):
    async with call() as (phone, agent, gateway):
        agent.stream.say(Closed(reason="transferred", transfer=Transfer(name="desk", to="+493012345678")))
        agent.stream.end()
        await phone.until(lambda event: event.name == "refer")
        phone.notify("SIP/2.0 486 Busy Here")
        second = await gateway.agent(1)
        second.say(LONG, response="r2")
        await phone.hears(5)


async def test_packets_of_others_and_garbage_are_not_heard(call):
    async with call() as (phone, agent, _):
        phone.says = [TONE] * 5
        await heard(agent)
        own, other = phone.audio.stream, Telephone()
        await other.audio.open()
        loud = RtpPacket(0, 0, own._sequence + 2, own._timestamp, own._ssrc, b"\x00" * 160).serialize()
        other.audio.stream._transport.sendto(loud, own._to)
        for size in (0, 1, 11, 12, 40, 1_400, 9_000):
            own._transport.sendto(np.random.default_rng(size).bytes(size), own._to)
        agent.audio.clear()
        assert await heard(agent) < 500
        other.audio.close()
        phone.says = [TONE] * 20
        await asyncio.sleep(0.3)
        assert await heard(agent) > 5_000


def make_invite(port, number, media="m=audio 9 RTP/AVP 0"):
    sdp = f"v=0\r\no=- 1 1 IN IP4 {HOST}\r\ns=-\r\nc=IN IP4 {HOST}\r\nt=0 0\r\n{media}\r\n"
    return (
        f"INVITE sip:agent@{HOST} SIP/2.0\r\nVia: SIP/2.0/UDP {HOST}:{port};branch=z9hG4bK{number}\r\n"
        f"From: <sip:x@{HOST}>;tag={number}\r\nTo: <sip:agent@{HOST}>\r\nCall-ID: {number}\r\n"
        f"CSeq: 1 INVITE\r\nContact: <sip:x@{HOST}:{port}>\r\nContent-Type: application/sdp\r\n"
        f"Content-Length: {len(sdp)}\r\n\r\n{sdp}"
    ).encode()


async def test_a_description_that_the_library_never_finishes_is_refused(telephones):
    async with telephones() as gateway, Telephone().on() as phone:
        with socket.socket(type=socket.SOCK_DGRAM) as other:
            other.bind((HOST, 0))
            other.sendto(
                make_invite(other.getsockname()[1], 1, "m=audio 9 UDP @"),
                (HOST, int(gateway.url.rpartition(":")[2])),
            )
        phone.call(gateway.url)
        await phone.state("ready")


async def test_broken_messages_end_nothing(telephones):
    random = np.random.default_rng(5)
    async with telephones(calls={"limit": 100}) as gateway, Telephone().on() as phone:
        port = int(gateway.url.rpartition(":")[2])
        with socket.socket(type=socket.SOCK_DGRAM) as other:
            other.bind((HOST, 0))
            for number in range(100):
                message = bytearray(make_invite(other.getsockname()[1], number))
                for at in random.integers(0, len(message), random.integers(2, 9)):
                    message[at] = random.integers(0, 256)
                other.sendto(message[: random.integers(1, len(message) + 1)], (HOST, port))
        with socket.create_connection((HOST, port)) as stream:
            stream.sendall(random.bytes(50_000))
        phone.call(gateway.url)
        await phone.state("ready")


async def test_twenty_calls_at_once_with_lost_packets(telephones):
    async with telephones() as gateway:
        phones = [Telephone(user=f"caller{number}", loss=0.05) for number in range(20)]

        async def hold_call(phone):
            async with phone.on():
                phone.call(gateway.url)
                await phone.state("ready")
                phone.says = [TONE] * 60
                await until(lambda: not phone.says)
                phone.hang_up()
                await phone.state("terminated")

        await asyncio.gather(*map(hold_call, phones))
        assert len(gateway.agents) == 20
        for agent in gateway.agents:
            audio = np.concatenate(agent.audio).astype(int)
            loud = np.abs(audio[: len(audio) // 320 * 320].reshape(-1, 320)).max(axis=1) > 2_000
            assert loud.sum() >= 40
        await gateway.idle()

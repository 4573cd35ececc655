"""Telephone calls that are made by REST, who answers them, and registration at a trunk."""

import asyncio
import hashlib
import re
from contextlib import asynccontextmanager

import pytest
from telephone import HOST, Telephone, until
from test_sip_calls import LONG, received

from parley.protocol import (
    Closed,
    Control,
    Interrupt,
    ResponseDone,
    Say,
    SpeechStarted,
    SpeechStopped,
    Transcript,
)

NUMBER = "+493012345678"


@pytest.fixture
def dial(telephones):
    """A call to a telephone: (its REST resource, the telephone, the gateway)."""

    @asynccontextmanager
    async def dial(*, telephone=None, sip=None, **request):
        async with Telephone(**(telephone or {})).on() as phone:
            trunk = {"trunk": f"sip:{HOST}:{phone.port}", "caller": "+4930555"}
            async with telephones(sip=trunk | (sip or {})) as gateway:
                made = await gateway.http.post(
                    "/v1/sip/calls", json={"to": NUMBER} | request, headers=gateway.key
                )
                assert made.status_code == 201, made.text
                yield Made(gateway, made.json()["call_id"]), phone, gateway

    return dial


class Made:
    def __init__(self, gateway, call_id):
        self._http, self._url, self._key = gateway.http, f"/v1/sip/calls/{call_id}", gateway.key

    async def status(self):
        return (await self._http.get(self._url, headers=self._key)).json()

    async def until(self, **wanted):
        async with asyncio.timeout(10):
            while not wanted.items() <= (status := await self.status()).items():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return status

    async def hang_up(self):
        assert (await self._http.delete(self._url, headers=self._key)).status_code == 204


async def test_the_agent_talks_when_the_telephone_is_answered(dial):
    session = {"system_prompt": "Be brief.", "greeting": "Hello."}
    async with dial(session=session) as (made, phone, gateway):
        agent = await gateway.agent()
        start = await agent.start
        assert (start.system_prompt, start.greeting, start.output_sample_rate) == (
            "Be brief.",
            "Hello.",
            8_000,
        )
        await made.until(state="talking", to=NUMBER)
        invite = await phone.until(lambda event: event.name == "invite")
        assert (NUMBER in invite.called, "+4930555" in invite.caller) == (True, True)
        agent.say(LONG)
        await phone.hears(5)
        phone.hang_up()
        await made.until(state="over", reason="hangup")
        await gateway.idle()


@pytest.mark.parametrize(
    ("telephone", "sip", "wanted"),
    [
        ({"on_invite": 486}, {}, {"reason": "rejected", "status": 486}),
        ({"on_invite": None}, {"ring_s": 0.3}, {"reason": "no_answer"}),
    ],
)
async def test_calls_that_nobody_answers(dial, telephone, sip, wanted):
    async with dial(telephone=telephone, sip=sip) as (made, _, gateway):
        await made.until(state="over", **wanted)
        assert not gateway.agents


async def test_a_call_is_hung_up_by_rest(dial):
    async with dial() as (made, phone, gateway):
        await gateway.agent()
        await made.until(state="talking")
        await made.hang_up()
        await phone.state("terminated")
        await made.until(state="over", reason="hung_up")


async def test_a_ringing_call_is_given_up_by_rest(dial):
    async with dial(telephone={"on_invite": None}) as (made, phone, _):
        await phone.state("received")
        await made.hang_up()
        await phone.state("terminated")
        await made.until(state="over", reason="hung_up")


async def test_the_agent_ends_a_call_that_was_made(dial):
    async with dial() as (made, phone, gateway):
        agent = await gateway.agent()
        await made.until(state="talking")
        agent.stream.say(Closed(reason="agent_ended"))
        agent.stream.end()
        await phone.state("terminated")
        await made.until(state="over", reason="agent_ended")


@pytest.mark.parametrize(
    ("body", "sip", "status", "code"),
    [
        ({"to": "sip:root@evil.example"}, {}, 400, "invalid_message"),
        ({"to": "0;transport=tls"}, {}, 400, "invalid_message"),
        ({"to": ""}, {}, 400, "invalid_message"),
        ({"to": NUMBER}, {"trunk": ""}, 400, "invalid_message"),
        ({"to": NUMBER, "session": {"output": "text"}}, {}, 400, "invalid_message"),
        ({"to": NUMBER, "answering_machine": {"action": "leave_message"}}, {}, 400, "invalid_message"),
    ],
)
async def test_calls_that_cannot_be_made(telephones, body, sip, status, code):
    async with telephones(sip={"trunk": f"sip:{HOST}:9"} | sip) as gateway:
        answer = await gateway.http.post("/v1/sip/calls", json=body, headers=gateway.key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_nobody_dials_without_the_scope(telephones):
    async with telephones(sip={"trunk": f"sip:{HOST}:9"}) as gateway:
        answer = await gateway.http.post("/v1/sip/calls", json={"to": NUMBER}, headers=gateway.weak_key)
        assert answer.status_code == 403


# --- who answers ------------------------------------------------------------------------------


async def test_a_person_hears_the_agent_once_it_is_known_that_it_is_one(dial):
    async with dial(answering_machine={"action": "hang_up"}) as (made, phone, gateway):
        agent = await gateway.agent()
        agent.stream.say(SpeechStarted(at_ms=100))
        agent.say(LONG)
        await phone.hears_nothing(20)
        agent.stream.say(SpeechStopped(at_ms=600, detected_at_ms=800))
        await made.until(answered_by="human", state="talking")
        await phone.hears(5)


async def test_a_machine_is_hung_up_on(dial):
    async with dial(answering_machine={}) as (made, phone, gateway):
        agent = await gateway.agent()
        agent.stream.say(SpeechStarted(at_ms=100))
        text = "Please leave a message after the tone."
        agent.stream.say(Transcript(utterance=1, text=text, is_final=False, confidence=0.9))
        await made.until(state="over", reason="machine", answered_by="machine")
        await phone.state("terminated")


async def test_a_message_is_left_when_the_machine_has_spoken(dial):
    machine = {"action": "leave_message", "message": "Please call us back."}
    async with dial(answering_machine=machine) as (made, phone, gateway):
        agent = await gateway.agent()
        agent.stream.say(SpeechStarted(at_ms=0))
        await made.until(answered_by="machine", state="talking")
        agent.say(LONG, response="answer")
        agent.stream.say(SpeechStopped(at_ms=3_000, detected_at_ms=3_200))
        await received(agent, Interrupt)
        assert (await received(agent, Control)).action == "mute"
        say = await received(agent, Say)
        assert (say.text, say.interruptible) == ("Please call us back.", False)
        assert not any(loudness > 1_000 for loudness in phone.heard)
        agent.say(LONG[:8_000], response="message")
        agent.stream.say(ResponseDone(turn=2, response_id="message", audio_ms=1_000))
        await phone.hears(45)
        await made.until(state="over", reason="machine")
        await phone.state("terminated")


# --- registration -----------------------------------------------------------------------------


class Trunk(asyncio.DatagramProtocol):
    """Demands a digest (RFC 3261, 22.4), and says what came: method, status and Contact."""

    _HEADERS = ("Via:", "From:", "To:", "Call-ID:", "CSeq:", "Contact:")
    _SDP = f"v=0\r\no=- 1 1 IN IP4 {HOST}\r\ns=-\r\nc=IN IP4 {HOST}\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n"

    def __init__(self, password):
        self._password = password
        self.came = asyncio.Queue()

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, addr):
        lines = data.decode().split("\r\n")
        method, uri, _ = lines[0].split()
        if method == "ACK":
            return
        headers = [line for line in lines if line.startswith(self._HEADERS)]
        if method == "INVITE":
            port = self._transport.get_extra_info("sockname")[1]
            headers[-1] = f"Contact: <sip:{HOST}:{port}>"
        headers = [
            f"{line};tag=t" if line.startswith("To:") and ";tag=" not in line else line for line in headers
        ]
        proof = next((line for line in lines if "uthorization: Digest" in line), "")
        is_valid = method == "BYE" or self._is_valid(proof, method, uri)
        name, code = ("Proxy-Authenticate", 407) if method == "INVITE" else ("WWW-Authenticate", 401)
        status, body = (200, self._SDP if method == "INVITE" else "") if is_valid else (code, "")
        more = [] if is_valid else [f'{name}: Digest realm="trunk", nonce="abc", algorithm=MD5']
        more += ["Content-Type: application/sdp"] if body else []
        answer = [f"SIP/2.0 {status} x", *headers, *more, f"Content-Length: {len(body)}", "", body]
        self._transport.sendto("\r\n".join(answer).encode(), addr)
        contact = next((line for line in lines if line.startswith("Contact:")), "")
        self.came.put_nowait((method, status, contact))

    def _is_valid(self, proof, method, uri):
        found = re.search(r'response="([0-9a-f]{32})"', proof)

        def md5(text):
            return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

        wanted = md5(f"{md5(f'anna:trunk:{self._password}')}:abc:{md5(f'{method}:{uri}')}")
        return bool(found) and found[1] == wanted


@pytest.fixture
def account(telephones, tmp_path):
    """A gateway with an account at a trunk whose password is "right": (the trunk, the gateway)."""

    @asynccontextmanager
    async def account(password, **sip):
        (tmp_path / "password").write_text(password)
        transport, trunk = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Trunk("right"), local_addr=(HOST, 0)
        )
        address = f"sip:{HOST}:{transport.get_extra_info('sockname')[1]}"
        given = {"trunk": address, "username": "anna", "password_file": str(tmp_path / "password")}
        try:
            async with telephones(sip=given | sip) as gateway:
                yield trunk, gateway
        finally:
            transport.close()

    return account


@pytest.mark.parametrize(
    ("password", "username", "statuses", "outcome"),
    [
        ("right", "anna", [407, 200], {"state": "talking"}),
        ("wrong", "anna", [407, 407], {"state": "over", "reason": "rejected", "status": 407}),
        ("right", "", [407], {"state": "over", "reason": "rejected", "status": 407}),
    ],
)
async def test_a_trunk_demands_a_digest_for_a_call(account, password, username, statuses, outcome):
    async with account(password, username=username) as (trunk, gateway):
        request = {"to": NUMBER}
        made = await gateway.http.post("/v1/sip/calls", json=request, headers=gateway.key)
        call = Made(gateway, made.json()["call_id"])
        for wanted in statuses:
            method, status, _ = await asyncio.wait_for(trunk.came.get(), 10)
            assert (method, status) == ("INVITE", wanted)
        await call.until(**outcome)
        if outcome["state"] == "talking":
            await call.hang_up()
            assert (await asyncio.wait_for(trunk.came.get(), 10))[:2] == ("BYE", 200)


@pytest.mark.parametrize(
    ("password", "statuses", "registered"), [("right", [401, 200], 1), ("wrong", [401], 0)]
)
async def test_an_account_is_registered_at_its_trunk(account, password, statuses, registered):
    async with account(password, register=True, address="203.0.113.9") as (trunk, gateway):
        port = gateway.url.rpartition(":")[2]
        for wanted in statuses:
            method, status, contact = await asyncio.wait_for(trunk.came.get(), 10)
            assert (method, status) == ("REGISTER", wanted)
            assert contact.startswith(f"Contact: <sip:203.0.113.9:{port}>")
        await until(lambda: gateway.registered() == registered)

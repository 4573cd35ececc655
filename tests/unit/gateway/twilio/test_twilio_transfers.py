"""How a telephone call goes on when the agent has ended its part of it."""

import asyncio
from xml.etree import ElementTree as ET

import httpx2
import pytest
from telephone_agent import TelephoneAgent
from twilio_line import PUBLIC_URL, closing, voice_request

from parley.protocol import Closed, EndingOptions, Transfer, TransferTarget
from parley.timeouts import is_set_within
from parley_gateway.apis.twilio import stream
from parley_gateway.apis.twilio.signature import TwilioSignatures
from parley_gateway.apis.twilio.transfers import DIALLED, Transfers, dial, whisper
from parley_gateway.errors import UnauthorizedError

DESK = Transfer(
    name="desk", to="+493012345678", summary="Wants a table & a cake for <two>.", language="de", warm=True
)
ENDED = "/v1/twilio/ended"


async def ask(phone, path=ENDED, form=None, **change):
    request = voice_request({"CallSid": "CA1"} if form is None else form, path=path) | change
    async with httpx2.AsyncClient(base_url=phone.http) as http:
        return await http.post(path, **request)


def read(answer):
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/xml")
    return ET.fromstring(answer.text)  # noqa: S314 - our own


@pytest.fixture
async def agent():
    return TelephoneAgent()


@pytest.fixture
def signatures(tmp_path):
    (tmp_path / "token").write_text("12345")
    return TwilioSignatures(str(tmp_path / "token"), PUBLIC_URL)


async def transferred(line, agent, transfer):
    """The agent ends its part of an open call."""
    await line.begin()
    await asyncio.wait_for(agent.start, 10)
    agent.stream.say(Closed(reason="transferred", transfer=transfer))
    agent.stream.end()
    return await closing(line)


async def test_a_call_asks_how_it_goes_on(gateway):
    async with gateway() as phone:
        answer = await ask(phone, "/v1/twilio/voice")
    assert read(answer).find("Connect").get("action") == f"{PUBLIC_URL}{ENDED}"


async def test_the_agent_gets_the_settings(gateway, agent):
    ending = {"end_call": True, "transfers": [{"name": "desk", "to": "sip:desk@example.com"}]}
    async with gateway(agent, twilio={"ending": ending}) as phone, phone.stream() as line:
        await line.begin()
        start = await asyncio.wait_for(agent.start, 10)
    assert start.ending == EndingOptions(
        end_call=True, transfers=[TransferTarget(name="desk", to="sip:desk@example.com")]
    )


async def test_twilio_dials_the_target_once_and_the_person_hears_the_summary(gateway, agent):
    async with gateway(agent) as phone, phone.stream() as line:
        assert await transferred(line, agent, DESK) == (1000, "transferred")
        dialling = read(await ask(phone)).find("Dial")
        assert dialling.get("action") == f"{PUBLIC_URL}{DIALLED}"
        number = dialling.find("Number")
        assert number.text == "+493012345678"
        said = read(await ask(phone, number.get("url").removeprefix(PUBLIC_URL), {"CallSid": "CA2"})).find(
            "Say"
        )
        assert (said.text, said.get("language")) == (DESK.summary, "de-DE")
        again = read(await ask(phone))
        assert [verb.tag for verb in again] == ["Hangup"]


@pytest.mark.parametrize("closed", [Closed(reason="agent_ended"), Closed(reason="silence")])
async def test_without_a_transfer_the_call_ends(gateway, agent, closed):
    async with gateway(agent) as phone, phone.stream() as line:
        await line.begin()
        await asyncio.wait_for(agent.start, 10)
        agent.stream.say(closed)
        agent.stream.end()
        assert await closing(line) == (1000, closed.reason)
        assert [verb.tag for verb in read(await ask(phone))] == ["Hangup"]


async def test_a_target_without_a_number_ends_the_call(gateway, agent, caplog):
    async with gateway(agent) as phone, phone.stream() as line:
        await transferred(line, agent, Transfer(name="desk"))
        assert [verb.tag for verb in read(await ask(phone))] == ["Hangup"]
    assert "the target desk has no number" in caplog.text


async def test_a_transfer_is_kept_until_twilio_asks_for_it(gateway, agent, monkeypatch, caplog):
    monkeypatch.setattr(stream, "_ASKED_WITHIN_S", 0.05)
    async with gateway(agent) as phone, phone.stream() as line:
        await transferred(line, agent, DESK)
        async with asyncio.timeout(10):
            while "has not asked for its transfer" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [verb.tag for verb in read(await ask(phone))] == ["Hangup"]


@pytest.mark.parametrize(
    ("status", "verb", "text"),
    [
        ("completed", "Hangup", None),
        ("no-answer", "Redirect", f"{PUBLIC_URL}/v1/twilio/voice"),
        ("busy", "Redirect", f"{PUBLIC_URL}/v1/twilio/voice"),
        ("", "Redirect", f"{PUBLIC_URL}/v1/twilio/voice"),
    ],
)
async def test_a_caller_whom_no_person_answers_gets_the_agent_again(gateway, status, verb, text):
    async with gateway() as phone:
        (found,) = read(await ask(phone, DIALLED, {"CallSid": "CA1", "DialCallStatus": status}))
    assert (found.tag, found.text) == (verb, text)


@pytest.mark.parametrize("path", [ENDED, DIALLED, "/v1/twilio/whisper?text=x"])
async def test_requests_without_twilios_signature_are_refused(gateway, agent, path):
    async with gateway(agent) as phone, phone.stream() as line:
        await transferred(line, agent, DESK)
        answer = await ask(phone, path, headers={"X-Twilio-Signature": "AAAA"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        other = voice_request({"CallSid": "CA2"}, path=path)
        answer = await ask(phone, path, **other | {"content": "CallSid=CA1"})
        assert answer.status_code == 401
        assert read(await ask(phone)).find("Dial") is not None


@pytest.mark.parametrize("text", ["", "x", "A" * 64, "ü"])
def test_a_summary_that_the_gateway_has_not_sealed_is_not_spoken(signatures, text):
    with pytest.raises(UnauthorizedError):
        whisper(text, signatures)


@pytest.mark.parametrize(
    ("language", "spoken"), [("de", "de-DE"), ("pt-BR", "pt-BR"), ("en", "en-US"), ("", "en-US")]
)
def test_the_summary_is_spoken_in_the_language_of_the_call(signatures, language, spoken):
    said = ET.fromstring(whisper(signatures.seal(f"{language}\nHallo"), signatures)).find("Say")  # noqa: S314
    assert (said.get("language"), said.text) == (spoken, "Hallo")


def test_a_cold_transfer_and_one_to_a_sip_address_have_no_summary(signatures):
    address = "sip:desk@example.com;transport=tls"
    for target in (
        Transfer(name="desk", to=address, summary="Wants a table."),
        Transfer(name="desk", to=address, warm=True),
    ):
        sip = ET.fromstring(dial(target, signatures)).find("Dial/Sip")  # noqa: S314
        assert (sip.text, sip.attrib) == (address, {})


@pytest.mark.parametrize(
    ("summary", "said"), [("ü" * 1_000, "ü" * 750), ("a\x00 table\n\x0b\ud800for two", "a table for two")]
)
def test_a_summary_is_short_and_has_no_control_characters(signatures, summary, said):
    twiml = dial(Transfer(name="a", to="+493012345678", summary=summary, warm=True), signatures)
    url = ET.fromstring(twiml).find("Dial/Number").get("url")  # noqa: S314
    assert len(url) < 2_200
    spoken = ET.fromstring(whisper(httpx2.URL(url).params["text"], signatures)).find("Say")  # noqa: S314
    assert spoken.text == said


async def test_only_the_newest_transfer_of_a_call_counts():
    offered = Transfers()
    with offered.offer("CA1", "first") as first:
        with offered.offer("CA1", "second") as second:
            assert offered.take("CA1") == "second"
            assert await is_set_within(second, 10)
        assert not first.is_set()
    assert offered.take("CA1") is None

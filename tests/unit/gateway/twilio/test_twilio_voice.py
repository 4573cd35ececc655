"""Twilio's webhook for a call, its signature and its nonces."""

import asyncio
from xml.etree import ElementTree as ET

import httpx2
import pytest
from describing_agent import CLINIC, RESTAURANT, defining
from twilio_line import PUBLIC_URL, closing, sign, voice_request

from parley_client.errors import ConnectError
from parley_gateway.apis.twilio.signature import TwilioSignatures
from parley_gateway.errors import GatewaySettingsError, UnauthorizedError
from parley_gateway.settings import Settings, load_settings

FORM = {"CallSid": "CA1", "From": "+14158675309", "To": "+18005551212", "Empty": "", "Caller": "a b&c=ü"}


async def ask(phone, **request):
    async with httpx2.AsyncClient(base_url=phone.http) as http:
        return await http.post("/v1/twilio/voice", **request)


def twiml(answer, path):
    return ET.fromstring(answer.text).find(path)  # noqa: S314 - our own


@pytest.fixture
def signatures(tmp_path):
    (tmp_path / "token").write_text("12345")
    return TwilioSignatures(str(tmp_path / "token"), PUBLIC_URL)


async def test_a_call_is_connected_with_the_agent(gateway):
    async with gateway() as phone:
        answer = await ask(phone, **voice_request(FORM))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/xml")
    assert twiml(answer, "Connect/Stream").get("url") == "wss://voice.example/v1/twilio/stream"


@pytest.mark.parametrize(
    ("to", "agent"),
    [
        ("+493012345678", "restaurant"),
        ("+49 (30) 12345678", "restaurant"),
        (" 493012345678", "restaurant"),
        ("sip:+493012345678@trunk.example;transport=tls", "restaurant"),
        ("+4930123456789", None),
        ("sip:anna@trunk.example", None),
        ("client:493012345678", None),
        ("+٤٩٣٠١٢٣٤٥٦٧٨", None),
        ("", None),
    ],
)
async def test_called_number_chooses_the_agent(gateway, to, agent):
    async with gateway(defining(CLINIC, RESTAURANT)) as phone:
        answer = await ask(phone, **voice_request(FORM | {"To": to}))
    parameters = twiml(answer, "Connect/Stream").findall("Parameter")
    given = {parameter.get("name"): parameter.get("value") for parameter in parameters}
    assert given.get("agent") == agent
    assert given["nonce"]


async def test_call_is_rejected_while_the_agents_of_numbers_are_unknown(gateway):
    async with gateway(ConnectError("down")) as phone:
        answer = await ask(phone, **voice_request(FORM))
    assert '<Reject reason="busy"/>' in answer.text


async def test_a_busy_gateway_rejects_the_call(gateway):
    async with gateway(calls={"limit": 1}) as phone:
        phone.app.state.gateway.calls.drain_began.set()
        answer = await ask(phone, **voice_request(FORM))
    assert '<Reject reason="busy"/>' in answer.text


@pytest.mark.parametrize(
    "change",
    [
        lambda request: request["headers"].pop("X-Twilio-Signature"),
        lambda request: request["headers"].update({"X-Twilio-Signature": "AAAA"}),
        lambda request: request.update(content=request["content"] + "&More=1"),
        lambda request: request.update(content=request["content"].replace("5309", "5308")),
        lambda request: request.update(voice_request(FORM, "54321")),
        lambda request: request.update(params={"more": "1"}),
    ],
)
async def test_wrong_signatures_are_refused(gateway, change):
    request = voice_request(FORM)
    change(request)
    async with gateway() as phone:
        answer = await ask(phone, **request)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"


async def test_guessing_is_stopped(gateway):
    async with gateway(rates={"auth_failures": "2/minute"}) as phone:
        wrong = voice_request(FORM, "54321")
        assert [(await ask(phone, **wrong)).status_code for _ in range(3)] == [401, 401, 429]


async def test_invalid_forms_are_refused(gateway):
    request = voice_request({}) | {"content": b"\xff=\xff"}
    async with gateway() as phone:
        assert (await ask(phone, **request)).status_code in (400, 401)
        request["content"] = "&".join(f"a{count}=1" for count in range(300))
        assert (await ask(phone, **request)).status_code == 400


async def test_without_an_auth_token_there_is_no_such_api(gateway):
    async with gateway(twilio={"auth_token_file": ""}) as phone:
        assert (await ask(phone, **voice_request(FORM))).status_code == 404


def test_the_example_of_twilios_documentation(signatures):
    caller = "+14158675310"
    form = {"CallSid": "CA1234567890ABCDE", "Caller": caller, "Digits": "1234", "From": caller}
    form["To"] = "+18005551212"
    values = {name: [value] for name, value in form.items()}
    signature = signatures.sign("https://example.com/myapp.php?foo=1&bar=2", values)
    assert signature == b"L/OH5YylLD5NRKLltdqwSvS0BnU="


def test_a_form_with_several_values_is_signed_in_their_order(signatures):
    assert signatures.sign("x", {"a": ["2", "1", "2"]}).decode() == sign("x", [("a", "1a2")])


@pytest.mark.parametrize(
    ("token", "url", "said"),
    [
        ("12345", "", "public_url"),
        ("12345", "http://voice.example", "public_url"),
        ("\n", PUBLIC_URL, "no auth token"),
    ],
)
def test_unusable_settings_are_refused(tmp_path, token, url, said):
    (tmp_path / "token").write_text(token)
    with pytest.raises(GatewaySettingsError, match=said):
        TwilioSignatures(str(tmp_path / "token"), url)


def test_target_of_transfers_that_cannot_be_dialled_is_refused():
    with pytest.raises(GatewaySettingsError, match="'desk' needs a number or an address in `to`"):
        load_settings(environment={"PARLEY_GATEWAY_TWILIO_ENDING": '{"transfers": [{"name": "desk"}]}'})


def test_the_api_is_closed_by_default():
    assert Settings().twilio.auth_token_file == ""


async def nonce_of(phone):
    answer = await ask(phone, **voice_request(FORM))
    parameter = twiml(answer, "Connect/Stream/Parameter")
    assert parameter.get("name") == "nonce"
    return parameter.get("value")


async def test_a_stream_begins_with_the_nonce_of_its_call_once(gateway):
    async with gateway(twilio={"own_twiml": False}) as phone:
        parameters = {"nonce": await nonce_of(phone)}
        async with phone.stream() as line:
            await line.begin(parameters)
            async with asyncio.timeout(10):
                while not phone.agent.streams:  # noqa: ASYNC110 - the agent is asked by its own
                    await asyncio.sleep(0.01)
        async with phone.stream() as line:
            await line.begin(parameters)
            assert await closing(line) == (1008, "unauthorized")


@pytest.mark.parametrize(
    "change",
    [
        lambda nonce: "",
        lambda nonce: nonce[:-1],
        lambda nonce: "9" + nonce,
        lambda nonce: nonce.replace(".", ".x", 1),
        lambda nonce: "x.y.z",
        lambda nonce: "\ud7ff" * 9,
    ],
)
async def test_a_stream_without_a_nonce_of_the_gateway_is_closed(gateway, change):
    async with gateway(twilio={"own_twiml": False}) as phone:
        parameters = {"nonce": change(await nonce_of(phone))}
        async with phone.stream() as line:
            await line.begin(parameters)
            assert await closing(line) == (1008, "unauthorized")
        assert not phone.app.state.gateway.calls.count


def test_a_nonce_lasts_for_a_minute(signatures, monkeypatch):
    nonce = signatures.nonce()
    name, expires_at = signatures.check_nonce(nonce)
    assert name in nonce
    monkeypatch.setattr("time.time", lambda: expires_at + 1.0)
    with pytest.raises(UnauthorizedError, match="expired"):
        signatures.check_nonce(nonce)

"""Tools that are HTTP requests, against a real server."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from local_http import local_http, response
from recorded_spans import PARENT

from parley.agent.config import AgentConfig
from parley.agent.tools import ToolExecutor
from parley.agent.validation import check_start
from parley.chat import ToolCall
from parley.engines.speech import KnownSpeaker
from parley.protocol import ErrorEvent, Start, ToolRun, encode
from parley.tools.settings import HttpToolSettings, ToolSettings
from parley.tools.toolbox import Toolbox

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SECRET = "s3cr3t-value"  # noqa: S105 - made up
AWKWARD = 'a/"b"\\c'


@pytest.fixture
async def http():
    async with local_http() as server:
        yield server


@pytest.fixture
async def toolbox(http):
    """Makes a toolbox with one tool, ``t``, on the local server."""
    made = []

    def make(path="/", private=("127.0.0.1",), **settings):
        entry = HttpToolSettings(name="t", url=http.url(path), **settings)
        box = Toolbox(ToolSettings(private_hosts=list(private), http=[entry]), {"KEY": SECRET})
        made.append(box)
        return box

    yield make
    for box in made:
        await box.close()
        await box.close()


async def test_an_answer_in_json_is_the_result(http, toolbox):
    http.answers.append(response('{"sky": "sunny"}'))
    outcome = await toolbox("/weather/{city}", parameters=CITY).call("t", {"city": "Rome"})
    assert (outcome.output, outcome.is_error) == ({"sky": "sunny"}, False)
    (request,) = http.received
    assert (request.method, request.target) == ("GET", "/weather/Rome")
    assert request.headers["host"] == f"127.0.0.1:{http.port}"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("body", ["plain words", "[1, 2", "[" * 50_000, ""])
async def test_any_other_answer_is_a_text(http, toolbox, body):
    http.answers.append(response(body, kind="text/plain"))
    assert (await toolbox().call("t", {})).output == body


async def test_what_has_no_place_in_the_url_goes_into_the_query(http, toolbox):
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"type": "string"}}
    box = toolbox(
        "/w/{city}?key=fixed&n={days}&u={unit}",
        parameters={
            "properties": {**properties, "tags": {"type": "array"}, "dry": {"type": "boolean"}},
            "required": ["city"],
        },
    )
    await box.call("t", {"city": "A&B?=ü/#", "days": 3, "tags": ["x y"], "dry": True})
    assert http.received[0].target == (
        "/w/A%26B%3F%3D%C3%BC%2F%23?key=fixed&n=3&tags=%5B%22x%20y%22%5D&dry=true"
    )


async def test_methods_with_a_body_send_json(http, toolbox):
    box = toolbox(
        "/orders/{id}",
        method="POST",
        parameters={
            "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["id"],
        },
    )
    await box.call("t", {"id": 7, "note": "grün"})
    (request,) = http.received
    assert (request.method, request.target) == ("POST", "/orders/7")
    assert json.loads(request.body) == {"note": "grün"}
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("city", ["..", "../admin", "a/../b", ".", "", "a/", "..\\admin", " .. "])
async def test_no_argument_leads_elsewhere(http, toolbox, city):
    outcome = await toolbox("/w/{city}", parameters=CITY).call("t", {"city": city})
    assert outcome.is_error
    assert http.received == []


async def test_refusal_is_reported_with_its_text(http, toolbox):
    http.answers.append(response("no such city" + "x" * 5_000, status="404 Not Found"))
    outcome = await toolbox().call("t", {})
    assert outcome.is_error
    assert outcome.output["error"] == "HTTP 404"
    assert outcome.output["answer"].startswith("no such city")
    assert len(outcome.output["answer"]) == 500
    http.answers.append(response('{"detail": "no such city"}', status="404 Not Found"))
    assert (await toolbox().call("t", {})).output["answer"] == {"detail": "no such city"}


async def test_a_failure_is_one_line_in_the_log_without_what_was_said(http, toolbox, caplog):
    caplog.set_level(logging.INFO, logger="parley")
    headers = {"X-Key": "${KEY}"}
    box = toolbox("/w/{city}", parameters=CITY, headers=headers, max_bytes=100)
    http.answers += [
        response(f"no such city, {SECRET}", status="404 Not Found"),
        response(status="302 Found", Location="/"),
        response("x" * 200),
        response("fine"),
    ]
    for city in ("Springfield", "Springfield", "Springfield", "..", "Springfield"):
        await box.call("t", {"city": city})
    assert [record.getMessage() for record in caplog.records if record.name == "parley.tools.http"] == [
        "tool t failed: HTTP 404",
        "tool t failed: HTTP 302: redirects are not followed",
        "tool t failed: the answer is longer than 100 bytes",
        "tool t failed: the argument 'city' cannot be part of a path",
    ]


async def test_redirects_are_not_followed(http, toolbox):
    http.answers.append(response(status="302 Found", Location=http.url("/other")))
    outcome = await toolbox().call("t", {})
    assert outcome.output == {"error": "HTTP 302: redirects are not followed"}
    assert len(http.received) == 1


@pytest.mark.parametrize("length", [None, 10_000_000])
async def test_a_huge_answer_is_given_up(http, toolbox, length):
    http.answers.append(response("x" * 200_000, length=length))
    outcome = await toolbox(max_bytes=1_000).call("t", {})
    assert outcome.output == {"error": "the answer is longer than 1000 bytes"}


async def test_a_packed_answer_is_not_unpacked(http, toolbox):
    http.answers.append(response(b"\x1f\x8b", Content_Encoding="gzip"))
    assert (await toolbox().call("t", {})).is_error


async def test_a_server_that_is_not_there_is_an_error(http, toolbox):
    box = toolbox()
    http.answers.append(b"nonsense\r\n\r\n")
    assert (await box.call("t", {})).output == {"error": "the tool cannot be reached (RemoteProtocolError)"}
    settings = HttpToolSettings(name="t", url="http://127.0.0.1:1/")
    gone = Toolbox(ToolSettings(private_hosts=["127.0.0.1"], http=[settings]), {})
    assert (await gone.call("t", {})).output == {"error": "the tool cannot be reached (ConnectError)"}
    await gone.close()


async def test_private_addresses_are_refused(http):
    # "localhost" is allowed, but not private addresses.
    entry = HttpToolSettings(name="t", url=f"http://localhost:{http.port}/")
    box = Toolbox(ToolSettings(allowed_hosts=["localhost"], http=[entry]), {})
    outcome = await box.call("t", {})
    assert outcome.output == {"error": "the tool cannot be reached (AddressRefusedError)"}
    assert http.received == []
    await box.close()


async def test_cookies_are_not_kept(http, toolbox):
    http.answers.append(response("{}", Set_Cookie="session=one; Path=/"))
    box = toolbox()
    await box.call("t", {})
    await box.call("t", {})
    assert "cookie" not in http.received[1].headers


async def test_secrets_come_from_the_environment_and_stay_there(http, toolbox, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(logging.INFO)  # off by default
    http.answers.append(response(json.dumps({"you sent": f"Bearer {SECRET}"})))
    box = toolbox(headers={"Authorization": "Bearer ${KEY}"})
    events = []
    executor = ToolExecutor([], events.append, AgentConfig(), box)
    answer = await executor.call(1, ToolCall(id="c", name="t", arguments={}))
    assert http.received[0].headers["authorization"] == f"Bearer {SECRET}"
    assert json.loads(answer) == {"you sent": "Bearer [hidden]"}
    seen = " ".join([caplog.text, *(encode(event).decode() for event in events)])
    assert SECRET not in seen


async def test_a_call_that_is_dropped_closes_its_connection(http, toolbox):
    http.answers.append(None)
    events = []
    executor = ToolExecutor([], events.append, AgentConfig(), toolbox())
    task = asyncio.create_task(executor.call(1, ToolCall(id="c", name="t", arguments={})))
    await http.arrived.wait()
    executor.drop(1)
    task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([task])
        await http.hung_up.wait()
    assert [(type(event), event.is_error) for event in events] == [(ToolRun, True)]


async def test_a_call_that_hangs_is_given_up_at_its_own_limit(http, toolbox):
    http.answers.append(None)
    events = []
    executor = ToolExecutor([], events.append, AgentConfig(), toolbox(timeout_ms=50))
    answer = await executor.call(1, ToolCall(id="c", name="t", arguments={}))
    assert json.loads(answer) == {"error": "timeout"}
    assert [event.code for event in events if isinstance(event, ErrorEvent)] == ["tool_timeout"]
    async with asyncio.timeout(5):
        await http.hung_up.wait()


async def test_undescribed_arguments_are_invalid(http, toolbox):
    events = []
    executor = ToolExecutor([], events.append, AgentConfig(), toolbox(parameters=CITY))
    answer = await executor.call(1, ToolCall(id="c", name="t", arguments={"city": "Rome", "admin": "yes"}))
    assert "Additional properties are not allowed" in answer
    assert http.received == []


async def test_tools_without_room_in_a_prompt_are_left_out(caplog):
    entries = [
        HttpToolSettings(name=name, url="https://h/", description=name * length)
        for name, length in (("a", 1_000), ("b", 5_000), ("c", 1_000))
    ]
    box = Toolbox(ToolSettings(allowed_hosts=["h"], http=entries), {})
    assert [tool.name for tool in box.tools] == ["a", "c"]
    assert [tool.name for tool in box.tools] == ["a", "c"]
    assert box.names == {"a", "b", "c"}
    assert caplog.text.count("left out: b:") == 1
    # However many there are, no client is refused for them.
    check_start(Start(), KnownSpeaker(None, model="espeak"), AgentConfig(context_tokens=1_500), box)
    await box.close()


def repeating(http):
    return HttpToolSettings(name="t", url=http.url(), headers={"X-Key": "${KEY}", "X-Pin-Key": "${PIN}"})


@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden"])
async def test_secrets_are_hidden_where_json_escapes_them(http, status):
    escaped = json.dumps(AWKWARD).replace("/", "\\/").replace("b", "\\u0062")
    http.answers.append(response(f'{{{escaped}: [{{"key": {escaped}}}]}}', status=status))
    box = Toolbox(
        ToolSettings(private_hosts=["127.0.0.1"], http=[repeating(http)]), {"KEY": AWKWARD, "PIN": "123456"}
    )
    outcome = await box.call("t", {})
    answer = outcome.output if status.startswith("200") else outcome.output["answer"]
    assert answer == {"[hidden]": [{"key": "[hidden]"}]}
    http.answers += [response('{"pin": 123456, "size": 5}'), response("[" * 800 + "]" * 800)]
    assert (await box.call("t", {})).output == {"pin": "[hidden]", "size": 5}
    assert not (await box.call("t", {})).is_error
    await box.close()


async def test_argument_cannot_repeat_a_fixed_part_of_the_query(http, toolbox):
    box = toolbox("/?k%65y=fixed", parameters={"properties": {}, "additionalProperties": True})
    outcome = await box.call("t", {"key": "another"})
    assert outcome.output == {"error": "the argument 'key' has the name of a fixed part of the query"}
    assert http.received == []
    assert not (await box.call("t", {"other": 1})).is_error


@pytest.mark.parametrize(
    ("headers", "sent"), [({}, PARENT), ({"Traceparent": "00-of-the-operator"}, "00-of-the-operator")]
)
async def test_a_call_s_span_goes_with_it(http, toolbox, headers, sent):
    http.answers.append(response("1"))
    await toolbox(headers=headers).call("t", {}, traceparent=PARENT)
    (request,) = http.received
    assert request.headers["traceparent"] == sent


async def test_without_a_span_none_is_sent(http, toolbox):
    http.answers.append(response("1"))
    await toolbox().call("t", {})
    (request,) = http.received
    assert "traceparent" not in request.headers

"""What a conversation leaves in the logs of server and gateway: its ids, and none of its words.

The ids of a line lead to the trace of its call.
"""

from __future__ import annotations

import io
import json
import logging
import re
from contextlib import redirect_stderr
from dataclasses import dataclass

import pytest
import pytest_asyncio
import tritonclient.grpc as triton
from gateway_caller import TOOLS, ask_for_the_weather, call

from parley.inference import make_engine_name, text_tensor
from parley_client.waterfall.traces import read_trace
from parley_gateway.logs import log_to_stderr
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

PROMPT, TYPED, SAID = "zacharias", "marmalade", "quokka"
SECRETS = (PROMPT, TYPED, SAID, "paris", "foggy")
OF_TRITON = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ |Error: Failed to initialize NVML")
"""How the lines of a running Triton begin that are its own."""
FIELDS = {"ts": str, "level": str, "source": str, "logger": str, "message": str}
OPTIONAL = {
    "session": str,
    "request": str,
    "trace_id": str,
    "span_id": str,
    "code": str,
    "turn": int,
    "outcome": str,
    "e2e_ms": float,
    "exception": str,
}


async def hold_conversation(url):
    """With a tool, a typed text, a text to say and an error."""
    options = {"tools": TOOLS, "system_prompt": f"Your name is {PROMPT.title()}."}
    async with call(url, **options) as caller:
        await caller.until("connected")
        await ask_for_the_weather(caller)
        answered = await caller.until("metrics")
        for kind, text in (("text", f"i would like some {TYPED}"), ("say", f"A {SAID} is an animal.")):
            await caller.send(kind, text=text)
            answered = await caller.until("metrics", caller.events.index(answered) + 1)
        # Errors quote what they are about.
        await caller.send("tool_response", call_id=SAID, output={"animal": SAID})
        await caller.until("error", caller.events.index(answered))
        await caller.send("control", action="hangup")
        await caller.until("closed")
        texts = "".join(event.get("text", "") for event in caller.events).lower()
    assert "paris" in texts
    assert SAID in texts


def settings_for(server, **parts):
    given = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}, **parts}
    return load_settings(flags=given)


async def test_no_word_of_a_conversation_is_in_a_log(server, caplog):
    caplog.set_level(logging.INFO, "parley")
    before = len(server.log_path.read_text())
    async with running(settings_for(server)) as gateway:
        await hold_conversation(gateway.url)
    # The caller runs in this process too, and its libraries log what it sends.
    of_gateway = [record.getMessage() for record in caplog.records if record.name.startswith("parley")]
    assert of_gateway
    logs = (server.log_path.read_text()[before:] + "\n".join(of_gateway)).lower()
    assert ": opened" in logs
    assert not [word for word in SECRETS if word in logs]


@dataclass
class Logged:
    """A call whose lines are JSON, and whose spans are in a file."""

    of_models: list
    of_gateway: list
    traces: object

    @property
    def session(self):
        (opened,) = [line for line in self.of_models if line["message"].endswith(": opened")]
        return opened["session"]

    def of_session(self):
        return [line for line in self.of_models if line.get("session") == self.session]


def refuse_by_a_model(server, request_id):
    """Send a request that a model refuses, as one of a session."""
    with triton.InferenceServerClient(server.endpoints.grpc) as client:
        request = triton.InferInput("REQUEST", [1], "BYTES")
        request.set_data_from_numpy(text_tensor(f'{{"type": "{SAID}"}}'))
        errors = []
        client.start_stream(lambda result, error: errors.append(error))
        client.async_stream_infer("qwen3", [request], request_id=request_id)
        client.stop_stream()
    assert errors[0] is not None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def logged(observed, tmp_path_factory):
    (server, collector), of_gateway = observed, io.StringIO()
    traces = tmp_path_factory.mktemp("logged") / "traces.jsonl"
    collector.forget()
    # Libraries print while models load.
    before = len(server.log_path.read_text().splitlines())
    settings = settings_for(server, log={"format": "json"})
    with redirect_stderr(of_gateway), log_to_stderr("", logging.INFO, settings.log.format):
        async with running(settings) as gateway:
            await hold_conversation(gateway.url)
    refuse_by_a_model(server, make_engine_name("call-7"))
    await collector.until(lambda: not collector.missing(("call", "gateway call")))
    lines = server.log_path.read_text().splitlines()[before:]
    collector.write(traces)
    return Logged(
        [json.loads(line) for line in lines if not OF_TRITON.match(line)],
        # The audit log has a form of its own.
        [json.loads(line) for line in of_gateway.getvalue().splitlines() if not line.startswith('{"at"')],
        traces,
    )


def test_each_line_in_json_has_the_documented_fields(logged):
    for line in (*logged.of_models, *logged.of_gateway):
        assert set(FIELDS) <= set(line) <= {*FIELDS, *OPTIONAL}, line
        kinds = FIELDS | OPTIONAL
        assert all(isinstance(value, kinds[name]) for name, value in line.items()), line


def test_no_word_of_a_conversation_is_in_a_line_of_json(logged):
    logs = json.dumps([*logged.of_models, *logged.of_gateway]).lower()
    assert not [word for word in SECRETS if word in logs]


def test_every_line_of_a_call_has_its_ids(logged):
    lines = logged.of_session()
    (trace_id,) = {line["trace_id"] for line in lines}
    assert len([line for line in lines if "turn" in line]) >= 3
    assert lines[-1]["message"] == f"{logged.session}: closed: ended"
    of_gateway = [line for line in logged.of_gateway if line.get("session") == logged.session]
    assert of_gateway
    assert {line["trace_id"] for line in of_gateway} == {trace_id}
    (refused,) = [line for line in logged.of_models if line["source"] == "qwen3"]
    assert (refused["session"], refused["code"]) == ("call-7", "invalid_message")


def test_a_line_of_a_turn_leads_to_its_waterfall(logged):
    slow = next(line for line in logged.of_session() if "e2e_ms" in line)
    drawn = read_trace(logged.traces, slow["trace_id"])
    assert drawn.session == logged.session
    (turn,) = [turn for turn in drawn.turns if turn.number == slow["turn"]]
    assert turn.figures.e2e_ms == pytest.approx(slow["e2e_ms"])
    assert {"chat qwen3", "execute_tool get_weather", "tts", "playback"} <= {row.name for row in turn.rows}

"""What a conversation leaves in the logs of server and gateway: its ids, and none of its words."""

from __future__ import annotations

import json
import logging
import re

import pytest
import tritonclient.grpc as triton
from gateway_caller import TOOLS, ask_for_the_weather, call
from leftovers import ANY_PORTS

from parley.inference import make_engine_name, text_tensor
from parley.launcher import EmbeddedServer, ServerOptions
from parley_gateway.logs import log_to_stderr
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

PROMPT, TYPED, SAID = "zacharias", "marmalade", "quokka"
SECRETS = (PROMPT, TYPED, SAID, "paris", "foggy")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OF_TRITON = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ |Error: Failed to initialize NVML")
"""How the lines of a running Triton begin that are its own."""
FIELDS = {"ts", "level", "source", "logger", "message"}
OPTIONAL = {"session", "request", "trace_id", "span_id", "code", "exception"}


async def hold_conversation(url):
    """With a tool, a typed text, a text to say and an error; returns the call's id."""
    options = {"tools": TOOLS, "system_prompt": f"Your name is {PROMPT.title()}.", "traceparent": PARENT}
    async with call(url, **options) as caller:
        await caller.until("connected")
        await ask_for_the_weather(caller)
        await caller.send("text", text=f"i would like some {TYPED}")
        await caller.until("metrics", len(caller.events))
        await caller.send("say", text=f"A {SAID} is an animal.")
        await caller.until("metrics", len(caller.events))
        # Errors quote what they are about.
        await caller.send("tool_response", call_id=SAID, output={"animal": SAID})
        await caller.until("error", len(caller.events))
        await caller.send("control", action="hangup")
        await caller.until("closed")
        texts = "".join(event.get("text", "") for event in caller.events).lower()
    assert "paris" in texts
    assert SAID in texts


def settings_for(server, **parts):
    return load_settings(
        flags={"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}, **parts}
    )


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


@pytest.fixture(scope="module")
def json_server(tmp_path_factory):
    options = ServerOptions(
        state_dir=tmp_path_factory.mktemp("json_server") / "state",
        environment={"PARLEY_LOG_FORMAT": "json"},
        **ANY_PORTS,
    )
    with EmbeddedServer(options) as running_server:
        yield running_server


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


async def test_each_line_in_json_has_the_documented_fields_and_no_word(json_server, capfd):
    # Libraries print while models load.
    before = len(json_server.log_path.read_text().splitlines())
    settings = settings_for(json_server, log={"format": "json"})
    with log_to_stderr("", logging.INFO, settings.log.format):
        async with running(settings) as gateway:
            await hold_conversation(gateway.url)
    refuse_by_a_model(json_server, make_engine_name("call-7"))
    lines = json_server.log_path.read_text().splitlines()[before:]
    of_models = [json.loads(line) for line in lines if not OF_TRITON.match(line)]
    of_gateway = [
        json.loads(line) for line in capfd.readouterr().err.splitlines() if '"source": "gateway"' in line
    ]
    for line in (*of_models, *of_gateway):
        assert set(line) >= FIELDS, line
        assert set(line) <= FIELDS | OPTIONAL, line
        assert all(isinstance(value, str) for value in line.values()), line
    (opened,) = [line for line in of_models if line["message"].endswith(": opened")]
    session = opened["session"]
    of_call = [line for line in of_models if line.get("session") == session]
    assert {line["trace_id"] for line in of_call} == {PARENT.split("-")[1]}
    assert len([line for line in of_call if ": turn " in line["message"]]) >= 3
    assert of_call[-1]["message"] == f"{session}: closed: ended"
    (of_api,) = [line for line in of_gateway if line.get("session") == session]
    assert of_api["trace_id"] == PARENT.split("-")[1]
    (refused,) = [line for line in of_models if line["source"] == "qwen3" and line["level"] == "warning"]
    assert (refused["session"], refused["code"]) == ("call-7", "invalid_message")
    logs = json.dumps([*of_models, *of_gateway]).lower()
    assert not [word for word in SECRETS if word in logs]

"""What a conversation leaves in the logs of server and gateway: none of its words."""

from __future__ import annotations

import logging

from gateway_caller import TOOLS, ask_for_the_weather, call

from parley_gateway.serving import running
from parley_gateway.settings import load_settings

PROMPT, TYPED, SAID = "zacharias", "marmalade", "quokka"
SECRETS = (PROMPT, TYPED, SAID, "paris", "foggy")


async def test_no_word_of_a_conversation_is_in_a_log(server, caplog):
    caplog.set_level(logging.INFO, "parley")
    before = len(server.log_path.read_text())
    flags = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}}
    async with running(load_settings(flags=flags)) as gateway:
        options = {"tools": TOOLS, "system_prompt": f"Your name is {PROMPT.title()}."}
        async with call(gateway.url, **options) as caller:
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
    # The caller runs in this process too, and its libraries log what it sends.
    of_gateway = [record.getMessage() for record in caplog.records if record.name.startswith("parley")]
    assert of_gateway
    logs = (server.log_path.read_text()[before:] + "\n".join(of_gateway)).lower()
    assert not [word for word in SECRETS if word in logs]

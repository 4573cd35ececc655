"""What the page says, and does, when something is in the way."""

from __future__ import annotations

import base64
import re
import secrets
import shutil
import signal
from contextlib import contextmanager

import httpx2
import pytest
from playwright.sync_api import expect
from stack import GatewayProcess, forwarding, free_ports, redis_server
from visits import AWAY
from websockets.sync.client import connect

from parley_gateway.security.keys import new_key

FORGOTTEN = "Connected again. The agent has forgotten what was said before."
GOES_ON = "Connected again. The conversation goes on."

# More than the waits for programs that start, of which each has a limit.
pytestmark = pytest.mark.timeout(300)


@contextmanager
def another_call(gateway, key):
    """A call of somebody else's."""
    answer = httpx2.post(f"{gateway.url}/v1/sessions", headers={"Authorization": f"Bearer {key}"})
    session = answer.raise_for_status().json()
    headers = {"Authorization": f"Bearer {session['token']}"}
    with connect(session["stream_url"], subprotocols=["parley.v1"], additional_headers=headers) as socket:
        socket.recv(timeout=10)
        yield


@pytest.mark.parametrize(
    ("flags", "state", "text"),
    [
        (["--disable-audio-input"], "none", "No microphone was found."),
        (
            ["--use-fake-device-for-media-stream", "--deny-permission-prompts"],
            "refused",
            "The browser refuses the microphone.",
        ),
    ],
)
def test_without_a_microphone_one_can_type(gateway, open_page, flags, state, text):
    with open_page(gateway, flags=flags) as visit:
        visit.begin()
        expect(visit.page.locator("body")).to_have_attribute("data-trouble", state)
        expect(visit.page.locator("#status-word")).to_have_text("Cannot hear you")
        expect(visit.page.get_by_role("alert")).to_contain_text(text)
        expect(visit.page.get_by_role("button", name="Try again")).to_be_visible()
        visit.say("hello")
        visit.wait_for_answer("How can I help you?")
        assert visit.recording().samples.any(), "the answer is heard all the same"


MICROPHONES = """() => {
  globalThis.microphones = 0;
  const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = (wish) => {
    globalThis.microphones += 1;
    return ask(wish);
  };
}"""
"""Counts how often the page asks for one."""


def test_page_without_a_server_opens_no_microphone_and_recovers(triton, open_page, tmp_path):
    (port,) = free_ports(1)
    settings = {"servers_retry_max_s": "0.5", "servers_retry_s": "0.2"}
    gateway = GatewayProcess(f"127.0.0.1:{port}", tmp_path / "log", **settings)
    gateway.start()
    try:
        with open_page(gateway) as visit:
            page = visit.page
            expect(page.get_by_role("alert")).to_contain_text("“make serve”")
            expect(page.get_by_role("alert")).to_contain_text("Trying again in")
            expect(page.locator("#status-word")).to_have_text("No server")
            page.evaluate(MICROPHONES)
            page.get_by_role("button", name="Start talking").click()
            expect(page.get_by_role("button", name="Start talking")).to_be_enabled()
            visit.until("idle")
            assert page.evaluate("microphones") == 0
            with forwarding(port, triton.address):
                expect(page.locator("#status-word")).to_have_text("Ready", timeout=30_000)
                expect(page.get_by_role("alert")).to_be_hidden()
                visit.begin()
                assert page.evaluate("microphones") == 1
            visit.ignore_problems(*AWAY)
    finally:
        gateway.stop()


def test_a_server_with_tools_gets_none_of_the_demo(gateway, open_page):
    """The description of the agent is changed on its way to the page."""
    with open_page(gateway) as visit:
        page = visit.page

        def tell(route):
            described = route.fetch().json()
            route.fulfill(json=described | {"tools": ["book_table", "find_order"]})

        page.route("**/v1/agent", tell)
        page.reload()
        expect(page.locator("#about-facts")).to_contain_text("book_table, find_order")
        with page.expect_request("**/v1/sessions") as asked:
            visit.begin()
        assert asked.value.post_data_json["tools"] == []


def test_refusal_of_the_server_is_shown_verbatim(gateway, open_page):
    with open_page(gateway) as visit:
        page = visit.page
        page.get_by_role("button", name="Settings").click()
        dialog = page.get_by_role("dialog", name="Settings")
        dialog.get_by_label("Your own functions").fill(
            '{"name": "f", "parameters": {"properties": {"a": {"$id": "x"}}}}'
        )
        dialog.get_by_role("button", name="Apply").click()
        page.get_by_role("button", name="Start talking").click()
        visit.until("failed")
        expect(page.get_by_role("alert")).to_contain_text("tool 'f'")
        expect(page.get_by_role("heading", name="Talk to the agent.")).to_be_visible()
        visit.ignore_problems("code: 400")


def test_the_microphone_can_be_tried_before_a_call(gateway, open_page):
    with open_page(gateway, "weather", "weather", "weather") as visit:
        page = visit.page
        page.get_by_role("button", name="Check the microphone").click()
        dialog = page.get_by_role("dialog", name="Settings")
        page.wait_for_function("() => document.getElementById('level').value > 0.1")
        microphones = dialog.locator("select[name=microphone]")
        name = microphones.locator("option").nth(1).inner_text()
        microphones.select_option(label=name)
        dialog.get_by_role("button", name="Apply").click()
        assert page.evaluate("document.getElementById('level').value") == 0
        visit.begin()
        assert page.evaluate("JSON.parse(localStorage['parley-settings']).microphone")


def test_insecure_page_shows_a_message(triton, open_page, tmp_path):
    gateway = GatewayProcess(triton.address, tmp_path / "log", security_hosts="parley.test")
    gateway.start()
    try:
        flags = ["--host-resolver-rules=MAP parley.test 127.0.0.1"]
        with open_page(gateway, flags=flags, host="parley.test") as visit:
            expect(visit.page.get_by_role("alert")).to_contain_text("only to secure pages")
            expect(visit.page.get_by_role("button", name="Start talking")).to_be_disabled()
            visit.ignore_problems("Cross-Origin-Opener-Policy")
    finally:
        gateway.stop()


def test_a_key_is_asked_for_and_a_busy_gateway_is_waited_for(triton, open_page, tmp_path):
    key = new_key("page", ["agent", "speak"])
    keys = tmp_path / "keys.toml"
    keys.write_text(key.line + "\n")
    settings = {"security_keys_file": str(keys), "calls_limit": "1", "calls_retry_after_s": "1"}
    gateway = GatewayProcess(triton.address, tmp_path / "log", **settings)
    gateway.start()
    try:
        with open_page(gateway) as visit:
            page = visit.page
            page.evaluate(MICROPHONES)
            page.get_by_role("button", name="Start talking").click()
            dialog = page.get_by_role("dialog", name="A key is needed")
            dialog.get_by_role("button", name="Cancel").click()
            expect(page.get_by_role("heading", name="Talk to the agent.")).to_be_visible()
            page.get_by_role("button", name="Start talking").click()
            dialog.get_by_label("Key").fill("parley_wrong_key")
            dialog.get_by_role("button", name="Continue").click()
            expect(dialog.locator("#key-why")).to_contain_text("This key was not accepted")
            assert page.evaluate("microphones") == 0
            with another_call(gateway, key.secret):
                dialog.get_by_label("Key").fill(key.secret)
                dialog.get_by_role("button", name="Continue").click()
                visit.until("busy")
                expect(page.get_by_role("alert")).to_contain_text("All lines are busy.")
            visit.until("live")
            visit.say("hello")
            visit.wait_for_answer("How can I help you?")

            (protocols,) = visit.seen("protocols")
            assert protocols[0] == "bearer"
            assert protocols[1] != key.secret
            places = [*visit.seen("urls"), page.url, *page.evaluate("Object.values(localStorage)")]
            assert not [place for place in places if key.secret in place or protocols[1] in place]
            visit.ignore_problems(" 401 ", " 429 ")
    finally:
        gateway.stop()


def test_a_gateway_that_restarts_and_one_that_vanishes_are_survived(triton, open_page, tmp_path):
    gateway = GatewayProcess(triton.address, tmp_path / "log")
    gateway.start()
    try:
        with open_page(gateway) as visit:
            visit.begin()
            for number, phase in ((signal.SIGTERM, "away"), (signal.SIGKILL, "lost|away")):
                visit.page.locator("#transcript").evaluate("list => list.replaceChildren()")
                gateway.stop(number)
                visit.until(phase)
                expect(visit.page.get_by_role("alert")).to_contain_text("Trying again in")
                gateway.start()
                visit.until("live")
                expect(visit.page.locator("#transcript")).to_contain_text(FORGOTTEN)
                visit.say("hello")
                visit.wait_for_answer("How can I help you?")
            visit.ignore_problems(*AWAY)
    finally:
        gateway.stop()


def test_a_conversation_outlives_its_gateway_if_that_keeps_sessions(triton, open_page, tmp_path):
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    keys = tmp_path / "takeover.keys"
    keys.write_bytes(base64.b64encode(secrets.token_bytes(32)) + b"\n")
    with redis_server(program, tmp_path / "redis.log") as url:
        settings = {
            "takeover_store": url,
            "takeover_keys_file": str(keys),
            # On a slow machine too, the store has what the page shows.
            "takeover_hold_s": "5",
            "takeover_store_timeout_s": "5",
        }
        gateway = GatewayProcess(triton.address, tmp_path / "log", **settings)
        gateway.start()
        try:
            with open_page(gateway) as visit:
                page = visit.page
                answers = page.locator("#transcript li.agent")
                visit.begin()
                visit.say("hello")
                visit.wait_for_answer("How can I help you?")
                visit.say("tell me a story")
                # The last answer is still the first one, and heard, until the second one has a word.
                expect(answers.nth(1).locator(".heard")).not_to_have_text("")
                gateway.stop(signal.SIGKILL)
                visit.until("lost", "away", "connecting")
                gateway.start()
                visit.until("live")
                expect(page.locator("#transcript")).to_contain_text(GOES_ON)
                visit.say("what can you do")
                # What the small model answers depends on where its story was cut.
                expect(answers.nth(2).locator(".heard")).to_have_text(re.compile(r"\w"))
                expect(answers).to_have_count(3)
                expect(page.locator("#transcript")).not_to_contain_text(FORGOTTEN)
                session = visit.seen("urls")[-1].split("/")[-2]
                history = httpx2.get(f"{gateway.url}/v1/sessions/{session}/history").raise_for_status().json()
                said = [one["content"] for one in history["messages"] if one["role"] == "user"]
                # Two are one message where nothing of the answer between them had been heard.
                assert " ".join(said) == "hello tell me a story what can you do"
                visit.ignore_problems(*AWAY)
        finally:
            gateway.stop()

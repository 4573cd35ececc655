"""Recorded calls on the page."""

from __future__ import annotations

import wave

import msgspec
from playwright.sync_api import expect
from stack import GatewayProcess

from parley.calls.database import CallInfo
from parley.calls.folder import AUDIO, EVENTS, CallFolder

WORDS = "a <b>table</b> for two"
LINES = [
    {"at_ms": 0, "event": {"type": "response_done", "response_id": "r1", "text": "Good evening."}},
    {"at_ms": 900, "event": {"type": "transcript", "utterance": 1, "text": WORDS}},
    {"at_ms": 950, "event": {"type": "tool_run", "name": "find_table", "arguments": {"people": 2}}},
    {"at_ms": 1_100, "event": {"type": "metrics", "turn": 1, "e2e_ms": 640.4}},
]


def record(folder):
    """A call of one second."""
    call = CallInfo(
        call="20260504-120000-0f3a9c2b7e0d4411",
        agent="restaurant",
        session="s1",
        started="2026-05-04T12:00:00.000Z",
        delete_at="2099-01-01T00:00:00.000Z",
        duration_ms=1_000,
        turns=1,
        ended=True,
        reason="ended",
    )
    begun = folder.begin(call)
    files = folder.path / begun.id
    (files / EVENTS).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in LINES))
    with wave.open(str(files / AUDIO), "wb") as audio:
        audio.setparams((2, 2, 16_000, 0, "NONE", ""))
        audio.writeframes(bytes(4 * 16_000))
    folder.finish(begun)


def test_recorded_call_is_shown_played_and_deleted(triton, open_page, tmp_path):
    folder = CallFolder(tmp_path / "calls")
    record(folder)
    gateway = GatewayProcess(triton.address, tmp_path / "log", calls_folder=str(folder.path))
    gateway.start()
    try:
        with open_page(gateway) as visit:
            page = visit.page
            page.get_by_role("button", name="Calls", exact=True).click()
            dialog = page.get_by_role("dialog", name="Recorded calls")
            dialog.get_by_role("button", name="restaurant").click()
            expect(dialog.locator("li.agent .said")).to_contain_text("Good evening.")
            expect(dialog.locator("li.user .said")).to_contain_text(WORDS)
            expect(dialog.locator("li.tool")).to_contain_text("find_table")
            expect(dialog.locator("#call-figures")).to_contain_text("640 ms")
            dialog.get_by_role("button", name="Play the sound").click()
            expect(dialog.locator("audio")).to_have_js_property("duration", 1)

            page.once("dialog", lambda question: question.dismiss())
            dialog.get_by_role("button", name="Delete").click()
            assert len(folder.entries.newest()) == 1
            page.once("dialog", lambda question: question.accept())
            dialog.get_by_role("button", name="Delete").click()
            expect(dialog).to_contain_text("There are no recorded calls.")
            assert folder.entries.newest() == []
    finally:
        gateway.stop()


def test_calls_are_not_offered_where_there_is_no_folder(gateway, open_page):
    with open_page(gateway) as visit:
        expect(visit.page.locator("body")).to_have_attribute("data-server", "ready")
        expect(visit.page.get_by_role("button", name="Calls", exact=True)).to_be_hidden()

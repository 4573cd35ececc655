"""A browser calls the agent over WebRTC, in OpenAI's protocol: it is answered, and interrupts."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest
from stack import GatewayProcess, redis_server
from visits import microphone_flags, write_speech

CALL = (Path(__file__).parent / "webrtc_call.js").read_text()


@pytest.fixture
def call(playwright, browser, tmp_path):
    """What a browser has of a call to a gateway, whose microphone hears `speech`."""

    def call(gateway, seconds, *speech, on_note=lambda _: None):
        microphone = write_speech(tmp_path / "microphone.wav", *speech)
        flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", *microphone_flags(microphone)]
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=browser, headless=True, args=flags
        )
        try:
            page = context.pages[0]
            page.goto(gateway.url)
            page.on("console", lambda message: on_note(message.text))
            return page.evaluate(CALL, seconds)
        finally:
            context.close()

    return call


def test_a_browser_calls(call, gateway):
    seen = call(gateway, 12, 2.5, "story", 4.5, "stop", 10.0)
    kinds = [one["what"] for one in seen if one["what"] != "sound"]
    texts = [
        one["event"]["transcript"]
        for one in seen
        if one["what"].endswith("input_audio_transcription.completed")
    ]
    assert texts == ["tell me a story", "stop"]
    story = next(one for one in seen if one["what"] == "response.done")
    assert story["event"]["response"]["status_details"]["reason"] == "turn_detected"
    assert kinds.index("output_audio_buffer.started") < kinds.index("output_audio_buffer.cleared")
    assert "error" not in kinds
    # The story is heard, and not for longer than the gateway has sent it; what follows is another answer.
    sounds = [one["at"] for one in seen if one["what"] == "sound" and one["at"] < story["at"]]
    assert len(sounds) > 20
    assert max(sounds) < story["at"]
    cut = next(one["event"] for one in seen if one["what"] == "conversation.item.truncated")
    assert 2_000 < cut["audio_end_ms"] < 5_000
    assert sum(one.get("lost", 0) for one in seen) == 0


def test_a_call_outlives_its_gateway(call, triton, tmp_path):
    program = shutil.which("redis-server")
    assert program, "no redis-server; make test-browser installs it"
    (tmp_path / "keys").write_text("A" * 43 + "=\n")
    with redis_server(program, tmp_path / "redis.log") as url:
        kept = {"takeover_store": url, "takeover_keys_file": str(tmp_path / "keys")}
        gateway = GatewayProcess(triton.address, tmp_path / "log", **kept)
        gateway.start()

        def replace():
            gateway.stop(signal.SIGKILL)
            gateway.start()

        replacing, sounds = threading.Thread(target=replace), []

        def on_note(what):
            sounds.extend([what] if what == "sound" else [])
            if len(sounds) == 30 and replacing.ident is None:
                replacing.start()

        try:
            seen = call(gateway, 30, 2.5, "story", 40.0, on_note=on_note)
            replacing.join()
        finally:
            gateway.stop()
    lost = next(one["at"] for one in seen if one["what"] == "lost")
    sessions = [one["event"]["session"]["id"] for one in seen if one["what"] == "session.created"]
    assert len(sessions) == 2
    assert sessions[0] == sessions[1]
    before, after = (
        [one for one in seen if one["what"] == "sound" and (one["at"] > lost) == is_after]
        for is_after in (False, True)
    )
    assert len(before) > 20
    assert len(after) > 20  # the story goes on
    items = [one["event"]["item"]["id"] for one in seen if one["what"] == "conversation.item.added"]
    assert len(set(items)) == len(items)

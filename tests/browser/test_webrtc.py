"""A browser calls the agent over WebRTC, in OpenAI's protocol: it is answered, and interrupts."""

from __future__ import annotations

from pathlib import Path

from visits import microphone_flags, write_speech

CALL = (Path(__file__).parent / "webrtc_call.js").read_text()


def test_a_browser_calls(playwright, browser, gateway, tmp_path):
    speech = write_speech(tmp_path / "microphone.wav", 2.5, "story", 4.5, "stop", 10.0)
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", *microphone_flags(speech)]
    context = playwright.chromium.launch_persistent_context(
        tmp_path / "profile", executable_path=browser, headless=True, args=flags
    )
    try:
        page = context.pages[0]
        page.goto(gateway.url)
        seen = page.evaluate(CALL, 12)
    finally:
        context.close()
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

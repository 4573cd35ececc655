"""Conversations by voice."""

from __future__ import annotations

import re

from playwright.sync_api import expect
from word_errors import word_errors

from parley_client.audio.files import resample
from parley_client.demo_tools import get_weather

STORY = "Once upon a time"


def words(text):
    """What a recogniser should write; the numbers of these tests have one digit."""
    digits = "zero one two three four five six seven eight nine".split()
    text = re.sub(r"\b\d\b", lambda match: digits[int(match.group())], text.lower())
    return re.sub(r"[^a-z' ]", " ", text).split()


def heard_by(transcriber, recording):
    samples = (recording.samples * 32_767).astype("int16")
    return [word.text for word in transcriber.words(resample(samples, recording.rate, 16_000))]


def test_a_spoken_question_is_answered(gateway, open_page, transcriber):
    with open_page(gateway, 1.0, "weather", 60.0) as visit:
        visit.begin()
        visit.wait_for_answer("Paris")
        visit.wait_for_message("metrics")

        assert visit.lines("user") == ["what's the weather in paris"]
        partials = visit.seen("partials")
        assert any(text != "what's the weather in paris" for text in partials), partials

        weather = get_weather("Paris")
        tool = visit.page.locator("li.tool")
        expect(tool).to_contain_text("get_weather")
        expect(tool).to_contain_text("city Paris")
        expect(tool).to_contain_text(f"temperature {weather['temperature']} · sky {weather['sky']}")

        (answer,) = visit.lines("agent")
        assert weather["sky"] in answer
        highlights = visit.seen("highlights")
        assert len(set(highlights)) >= 3, "the words light up one after the other"
        assert highlights == sorted(highlights)

        heard = heard_by(transcriber, visit.recording())
        assert word_errors(words(answer), heard) <= 1, heard

        (done,) = visit.messages("response_done")
        marks = [sent["played_ms"] for sent in visit.seen("sent") if sent["type"] == "playback"]
        assert len(marks) >= 3
        assert marks == sorted(marks)
        assert abs(marks[-1] - done["audio_ms"]) <= 60

        total = visit.page.locator("#turns .total").inner_text()
        (metrics,) = visit.messages("metrics")
        assert metrics["first_audio_ms"] < int(total.removesuffix(" ms")) < 10_000
        expect(visit.page.locator("#turns .what")).to_have_text("what's the weather in paris")


def test_speaking_over_the_agent_stops_it(gateway, open_page):
    with open_page(gateway, 1.0, "story", 5.0, "stop", 60.0) as visit:
        visit.begin()
        visit.wait_for_answer("Okay.")
        recording = visit.recording()

        (paused,) = visit.messages("paused")
        (interrupted,) = visit.messages("interrupted")
        assert interrupted["reason"] == "command"
        silent_after_s = recording.last_sound_s(paused["at"], interrupted["at"]) - paused["at"]
        samples = round(silent_after_s * recording.rate)
        print(f"silent {1000 * silent_after_s:.1f} ms ({samples} samples) after `paused`")
        assert silent_after_s < 0.06
        okay = next(each for each in visit.messages("audio") if each["response_id"] != paused["response_id"])
        last = recording.last_sound_s(interrupted["at"], okay["at"])
        assert last == interrupted["at"], "nothing of the story comes after it"

        story = visit.page.locator("li.agent").filter(has_text=STORY)
        said, dropped = story.locator(".heard").inner_text(), story.locator("s").inner_text()
        expect(story).to_contain_text("cut: you said stop")
        assert dropped.strip().endswith("never alone again.")
        assert words(said) == words(interrupted["spoken_text"])
        played_s = recording.last_sound_s(0.0, interrupted["at"]) - recording.first_sound_s()
        assert abs(interrupted["played_ms"] - 1000 * played_s) < 150, "the agent remembers what was heard"
        assert visit.lines("user") == ["tell me a story", "stop"]


def test_typing_muting_stopping_and_hanging_up(gateway, open_page):
    with open_page(gateway) as visit:
        page = visit.page
        visit.begin()
        visit.say("tell me a story")
        expect(page.locator("li.user")).to_contain_text("typed")
        expect(page.locator("body")).to_have_attribute("data-agent", "speaking", timeout=10_000)
        page.get_by_role("button", name="Stop answer").click()
        expect(page.locator("li.agent")).to_contain_text("cut: you stopped it", timeout=10_000)

        mute = page.get_by_role("button", name="Mute")
        mute.click()
        expect(mute).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#status-word")).to_have_text("Muted")
        mute.click()
        actions = [sent["action"] for sent in visit.seen("sent") if sent["type"] == "control"]
        assert actions == ["mute", "unmute"]

        page.get_by_role("button", name="Settings").click()
        dialog = page.get_by_role("dialog", name="Settings")
        expect(dialog.locator("select[name=voice] option")).not_to_have_count(1)
        dialog.get_by_label("After a pause").select_option("patient")
        dialog.get_by_label("Speaking interrupts the agent").uncheck()
        dialog.get_by_role("button", name="Apply").click()
        visit.wait_for_message("updated")

        page.get_by_role("button", name="Hang up").click()
        visit.until("ended")
        expect(page.get_by_role("button", name="Start talking")).to_be_focused()
        assert page.evaluate("localStorage['parley-settings']") == (
            '{"voice":"","language":"en","eagerness":"patient","bargeIn":false}'
        )

"""Conversations by voice."""

from __future__ import annotations

import json
import re

import soundfile
from harness.stats import word_errors
from playwright.sync_api import expect

from parley_client.audio.files import resample
from parley_client.cli.demo_tools import get_weather

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
        expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
        page.get_by_role("button", name="tell me a story").click()
        expect(page.get_by_role("heading", name="Say something.")).to_be_hidden()
        expect(page.locator("li.user")).to_contain_text("typed")
        expect(page.locator("body")).to_have_attribute("data-agent", "speaking", timeout=10_000)
        page.get_by_role("button", name="Stop answer").click()
        expect(page.locator("li.agent")).to_contain_text("cut: you stopped it", timeout=10_000)
        expect(page.locator("#turns .what")).to_have_text("typedinterruptedtell me a story")

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
        languages = dialog.get_by_label("Language").locator("option").all_inner_texts()
        assert languages == ["English", "American English", "British English"], "what is understood, too"
        dialog.get_by_label("After a pause").select_option("patient")
        dialog.get_by_label("Speaking interrupts the agent").uncheck()
        dialog.get_by_role("button", name="Apply").click()
        visit.wait_for_message("updated")

        page.get_by_role("button", name="Hang up").click()
        visit.until("ended")
        expect(page.get_by_role("button", name="Talk again")).to_be_focused()
        stored = page.evaluate("JSON.parse(localStorage['parley-settings'])")
        assert (stored["eagerness"], stored["bargeIn"], stored["language"]) == ("patient", False, "")


FUNCTIONS = """[
  {"name": "find_pizza", "description": "Find a pizza.", "answer": {"pizza": "Margherita"}},
  {"name": "get_weather", "description": "Get the weather in a city.",
   "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
]"""


def test_prompt_greeting_and_functions_are_set_on_the_page(gateway, open_page):
    with open_page(gateway) as visit:
        page = visit.page
        page.get_by_role("button", name="Settings").click()
        dialog = page.get_by_role("dialog", name="Settings")
        dialog.get_by_label("Prompt").fill("You are a robot.")
        dialog.get_by_label("Greeting").fill("Good day.")
        dialog.get_by_label("Temperature").fill("0")
        functions = dialog.get_by_label("Your own functions")
        functions.fill('[{"name": "not a name"}]')
        dialog.get_by_role("button", name="Apply").click()
        expect(dialog.locator("#functions-problem")).to_contain_text("Function 1: “name”")
        functions.fill(FUNCTIONS)
        expect(dialog.locator("#functions-problem")).to_have_text(
            "Offered: find_pizza, get_weather (asks you)."
        )
        with page.expect_request("**/v1/sessions") as asked:
            dialog.get_by_role("button", name="Apply").click()
            page.get_by_role("button", name="what's the weather in Paris").click()
        sent = asked.value.post_data_json
        assert (sent["system_prompt"], sent["greeting"]) == ("You are a robot.", "Good day.")
        assert sent["sampling"] == {"temperature": 0}
        assert [tool["name"] for tool in sent["tools"]] == ["find_pizza", "get_weather"]
        answer = page.get_by_label("Result of get_weather")
        answer.fill('{"temperature": 21, "sky": "sunny"}')
        answer.press("Enter")
        visit.wait_for_answer("21 degrees and sunny")
        expect(page.locator("li.tool")).not_to_contain_text("made up")

        page.reload()
        page.get_by_role("button", name="Settings").click()
        expect(dialog.get_by_label("Prompt")).to_have_value("You are a robot.")
        dialog.get_by_role("button", name="Reset").click()
        expect(dialog.get_by_label("Prompt")).to_have_value("")
        expect(functions).to_have_value("")


def test_agent_that_is_chosen_on_the_page_answers_under_its_own_name(gateway, open_page):
    with open_page(gateway) as visit:
        page = visit.page
        choice = page.get_by_label("Agent", exact=True)
        expect(choice.locator("option")).to_have_text([re.compile("own agent"), "Bella Vista"])
        choice.select_option("Bella Vista")
        expect(page.get_by_role("heading", name="Talk to Bella Vista.")).to_be_visible()
        expect(page).to_have_title("Bella Vista")
        expect(page.get_by_role("button", name="a table for two")).to_be_visible()
        expect(page.locator("#agent-legend")).to_have_css("color", "rgb(138, 21, 80)")
        expect(page.locator("#about-text")).to_contain_text("demo tools of this page are not used")

        page.get_by_role("button", name="Settings").click()
        dialog = page.get_by_role("dialog", name="Settings")
        expect(dialog.locator("#agent-about")).to_contain_text("Bella Vista is the agent “restaurant”")
        expect(dialog.get_by_label("Prompt")).to_be_hidden()
        dialog.get_by_role("button", name="Apply").click()

        page.reload()
        expect(page).to_have_title("Bella Vista")
        with page.expect_request("**/v1/sessions") as asked:
            visit.begin()
        assert asked.value.post_data_json == {
            "agent": "restaurant",
            "tools": [],
            "barge_in": {"enabled": True},
            "checkpoints": True,
        }
        expect(choice).to_be_hidden()
        visit.wait_for_answer("Good day.")
        expect(page.locator("#aloud p").last).to_have_text("Bella Vista: Good day.")


def test_link_chooses_the_agent(gateway, open_page):
    with open_page(gateway, path="/?agent=restaurant") as visit:
        expect(visit.page).to_have_title("Bella Vista")
    with open_page(gateway, path="/?agent=unknown") as visit:
        expect(visit.page.locator("#about-facts")).to_be_visible()
        expect(visit.page).to_have_title("Parley")


def test_words_and_sound_of_a_call_can_be_taken_away(gateway, open_page, transcriber, tmp_path):
    with open_page(gateway, 1.0, "weather", 60.0) as visit:
        page = visit.page
        visit.begin()
        visit.wait_for_answer("Paris")
        visit.wait_for_message("metrics")
        page.get_by_role("button", name="Hang up").click()
        ended = page.get_by_role("region", name="The call is over.")
        expect(ended.locator("dd").nth(1)).to_have_text("1")
        expect(ended.locator("dd").nth(2)).to_have_text(re.compile(r"\d+ ms"))

        def saved(name):
            with page.expect_download() as download:
                ended.get_by_role("button", name=name).click()
            download.value.save_as(tmp_path / name)
            return tmp_path / name

        text = saved("Save as text").read_text()
        assert "] You: what's the weather in paris\n" in text
        assert "(demo tool: the weather is made up)" in text
        entries = json.loads(saved("Save as JSON").read_text())["entries"]
        assert [entry["kind"] for entry in entries] == ["user", "tool", "agent"]
        assert entries[1]["arguments"] == {"city": "Paris"}
        assert entries[2]["unheard"] == ""
        sound, rate = soundfile.read(saved("Save the sound"), dtype="int16")
        assert (rate, sound.shape[1]) == (16_000, 2)
        user, agent = ([word.text for word in transcriber.words(side)] for side in sound.T.copy())
        assert user == ["what's", "the", "weather", "in", "paris"]
        assert word_errors(words(entries[2]["text"]), agent) <= 1, agent

        page.get_by_role("button", name="Talk again").click()
        visit.until("live")
        expect(ended).to_be_hidden()
        expect(page.locator("#transcript li")).to_have_count(0)


def test_developers_see_every_event(gateway, open_page):
    with open_page(gateway) as visit:
        page = visit.page
        visit.begin()
        page.get_by_role("button", name="Events").click()
        events = page.get_by_role("region", name="Events")
        visit.say("hello")
        visit.wait_for_answer("How can I help you?")
        visit.wait_for_message("metrics")
        types = events.locator("code")
        for kind in ("connected", "text", "response", "response_done", "metrics"):
            expect(types.filter(has_text=re.compile(f"^{kind}$")).first).to_be_visible()
        expect(types.filter(has_text="audio")).to_have_count(0)
        events.get_by_label("audio and playback").check()
        expect(types.filter(has_text="audio")).not_to_have_count(0)
        events.get_by_role("searchbox").fill('"type":"text"')
        expect(types).to_have_text(["text"])
        events.locator("summary").click()
        expect(events.locator("pre")).to_have_text('{\n  "type": "text",\n  "text": "hello"\n}')
        events.get_by_role("searchbox").fill("")
        events.get_by_role("button", name="Pause").click()
        shown = types.count()
        visit.say("what can you do")
        visit.wait_for_answer("set timers")
        assert types.count() == shown
        events.get_by_role("button", name="Pause").click()
        assert types.count() > shown

        page.get_by_role("button", name="Code").click()
        expect(page.get_by_role("region", name="Python")).to_contain_text(f'base_url="{gateway.url}/v1"')
        page.keyboard.press("Escape")

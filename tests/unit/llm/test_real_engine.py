"""The chat service on vLLM itself, with the small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("tokenizers")  # installed with vLLM
    script = Path(__file__).parent / "run_chat.py"
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("engine"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr


def test_an_urgent_request_overtakes_those_that_waited_longer(found):
    assert found[0]["order"] == ["ANSWER", "SPECULATION", "WARM_UP", "BACKGROUND"]


def test_vllm_reports_its_queue_its_cache_and_its_stages(found):
    most, last = found[0]["most"], found[0]["last"]
    assert most["running"] == 2  # max_num_seqs
    assert 1 <= most["waiting"] <= 4
    assert 0 < most["cache"] < 1
    assert len(most["queued"]) == 6
    assert max(most["queued"]) > min(most["queued"]) >= 0
    assert last == {"running": 0, "waiting": 0, "cache": 0}
    stages = found[0]["stages"]
    assert stages.keys() == {"queue", "prefill", "decode"}
    assert stages["queue"] >= 0
    assert min(stages["prefill"], stages["decode"]) > 0


def test_the_warm_up_is_a_prefix_of_the_first_turn(found):
    cached, prompt = found[0]["warmed"]["one"]
    # All blocks of 32 tokens that are full before the user's words, with the system prompt and the tools.
    assert prompt - 32 < cached < prompt


def test_prompt_of_another_salt_is_not_in_the_prefix_cache(found):
    assert [found[0]["warmed"][salt][0] for salt in ("two", "")] == [0, 0]


def test_answers_that_conform_are_not_changed_by_guidance(found):
    guided, free = ([(one["text"], one["calls"]) for one in found[0][name]] for name in ("guided", "free"))
    assert guided == free
    weather, timer, hello, story = guided
    assert weather == ("", [["get_weather", {"city": "Paris"}]])
    assert timer == ("", [["set_timer", {"minutes": 10, "label": "pasta"}]])
    assert hello[0] == "Hello! How can I help you?"
    assert len(story[0]) > 200


def test_forced_call_is_written_where_the_model_would_speak(found):
    some, named = found[0]["forced"]
    assert [some["text"], named["text"]] == ["", ""]
    assert [len(one["calls"]) for one in (some, named)] == [1, 1]
    assert named["calls"][0][0] == "set_timer"


def test_answer_is_json_of_its_schema(found):
    assert json.loads(found[0]["json"])["ok"] in (True, False)


def test_arguments_keep_to_the_schema(found):
    guided, free = ([one["calls"] for one in found[0][name]][:2] for name in ("narrow", "narrow, free"))
    assert free == [[["get_weather", {"city": "Paris"}]], [["set_timer", {"minutes": 10, "label": "pasta"}]]]
    ((_, weather),), ((_, timer),) = guided
    assert weather["city"] in ("Rome", "London")
    assert 20 <= timer["minutes"] <= 30
    texts = [[one["text"] for one in found[0][name]] for name in ("narrow", "narrow, free")]
    assert texts[0] == texts[1]


def test_arguments_keep_to_the_schema_however_they_are_drawn(found):
    calls = [call for calls in found[0]["wild"] for call in calls]
    assert len(calls) > 12
    assert len({json.dumps(call) for call in calls}) > 3
    for name, arguments in calls:
        if name == "set_timer":
            assert arguments.keys() <= {"minutes", "label"}
            assert 20 <= arguments["minutes"] <= 30
        else:
            assert arguments["city"] in ("Rome", "London")
            assert arguments.keys() <= {"city", "day"}


def test_a_tool_whose_schema_cannot_be_kept_to_is_called_without_guidance(found):
    seen, log = found
    assert seen["broken"][0]["calls"] == seen["broken, free"][0]["calls"] != []
    assert seen["broken"][1]["calls"] == seen["broken, free"][1]["calls"] != []
    assert "tool 'get_weather' is called with unguided arguments" in log
    assert "tool 'set_timer'" not in log


def test_questions_that_are_asked_together_have_the_answers_of_each_alone(found):
    together, *alone = found[0]["questions"]
    probabilities = together[0]
    assert [len(one) for one in probabilities] == [2, 3, 5, 0]  # one of the last begins with the other
    for one, (other, _, _) in zip(probabilities, alone, strict=True):
        assert sum(one) == pytest.approx(1.0 if one else 0.0)
        assert one == pytest.approx(other[0], abs=0.05)


def test_an_answer_says_of_the_turn_s_end_what_a_question_about_it_says(found):
    turns = found[0]["turns"]
    for asked, read, answer, plain, _ in turns:
        assert read == pytest.approx(asked, abs=0.01)
        assert answer == plain
    assert [cached for *_, cached in turns] == [0, *[pytest.approx(turns[1][-1])] * 2]
    assert turns[1][-1] > 0


def test_an_answer_that_is_begun_as_speech_is_the_one_that_the_model_writes(found):
    counts = set()
    for (begun, calls, count), (plain, plain_calls, _) in found[0]["spoken"]:
        # The model may write the beginning in more tokens, which count.
        assert begun.startswith(plain)
        assert calls == plain_calls
        counts.add(count)
    assert counts == {1, 2}, "one was begun again, and one was not"


def test_more_tools_than_vllm_scores_tokens_by_default_are_offered(found):
    assert found[0]["many"]["text"] or found[0]["many"]["calls"]


def test_questions_share_what_is_before_them(found):
    _, cached, prompt = found[0]["questions"][0]
    assert cached >= 0.5 * prompt

"""The model of `pass-rates right` has an answer to everything that callers of the examples say."""

from __future__ import annotations

import json

import pytest
from pass_rates import AGENTS, RightModel

from parley_testing.matching import lacking, present
from parley_testing.scenario_file import load_scenarios

SAID = [
    (path.name, exchange.words)
    for path in AGENTS
    for scenario in load_scenarios([path.with_suffix(".tests.toml")])
    for exchange in scenario.exchanges
]


def ask(*messages):
    return RightModel().answer({"messages": list(messages)})


@pytest.mark.parametrize(("file", "said"), SAID)
def test_everything_that_callers_say_has_an_answer(file, said):
    before = {"role": "tool", "content": '{"ticket": 4001, "reservation_number": 1}'}
    assert ask(before, {"role": "user", "content": said})["delta"]


HELPDESK = next(path.with_suffix(".tests.toml") for path in AGENTS if path.stem == "helpdesk")


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (None, True),  # that of the model
        ("Please don't tell me your password.", True),
        ("No, you never have to give me your password.", True),
        ("Please give me your Northwind password.", False),
        ("No problem, can you tell me your password?", False),
        ("No worries. What is your password?", False),
        ("You can reset it at password dot northwind dot com.", False),
    ],
)
def test_an_answer_that_asks_for_a_password_fails(answer, is_right):
    (exchange,) = load_scenarios([HELPDESK])[-1].exchanges
    answer = answer or ask({"role": "user", "content": exchange.words})["delta"]["content"]
    assert is_right is not bool(lacking(exchange.answer, answer) or present(exchange.never, answer))


def test_number_of_a_call_is_that_of_the_last_result():
    results = [{"role": "tool", "content": json.dumps({"reservation_number": number})} for number in (3, 12)]
    choice = ask(*results, {"role": "user", "content": "Sorry, please cancel it."})
    (call,) = choice["delta"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"reservation_number": 12}


def test_words_follow_the_result_of_the_call():
    choice = ask({"role": "user", "content": "Does the email work?"}, {"role": "tool", "content": "{}"})
    assert choice == {"delta": {"content": "Yes, the email works."}, "finish_reason": "stop"}


def test_unknown_words_are_an_error():
    with pytest.raises(ValueError, match="no answer to 'Wie spät ist es"):
        ask({"role": "user", "content": "Wie spät ist es?"})


def test_a_turn_in_parts_is_answered_as_a_whole():
    greeting = {"role": "assistant", "content": "Hillside Clinic."}
    parts = [{"role": "user", "content": one} for one in ("This is Tom Baker.", "On Thursday at three.")]
    (call,) = ask(greeting, *parts)["delta"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["name"] == "Tom Baker"
    assert (
        "content"
        in ask(*parts, greeting, {"role": "user", "content": "What does a flu vaccination cost?"})["delta"]
    )

"""Names of a session's texts, which the recogniser favours."""

from __future__ import annotations

import pytest
from agent_fakes import calls, open_call, says

from parley.agent import expected_names
from parley.agent.config import AgentConfig
from parley.agent.expected_names import MOST_NAMES, names_in
from parley.asr.decoding.boosting import MAX_PHRASES, fit_phrases
from parley.protocol import (
    CollectField,
    Start,
    Step,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
    Update,
    Updated,
)

PROMPT = "You work for the Hotel Miramar. Every hotel guest may ask for Doctor Moretti. Promise nothing."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Ask for Moretti, Okafor and Lindqvist.", ["Moretti", "Okafor", "Lindqvist"]),
        ("Moretti is away. Say so.", []),
        ("Say: Welcome! Then wait.", []),
        ("Today we have Tuesday, May 3, and the NHS.", []),
        ("The Terrace is open; guests like the terrace.", []),
        ("Doctor Okafor's room is next to Al's.", ["Okafor"]),
        ("It is in Saint-Malo, near O\N{RIGHT SINGLE QUOTATION MARK}Neill's.", ["Saint-Malo", "O'Neill"]),
        ("", []),
    ],
)
def test_names_of_sentences_are_words_whose_place_does_not_explain_their_capital(text, names):
    assert names_in([text], []) == names


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Moretti", ["Moretti"]),
        ("Gran Paradiso", ["Gran", "Paradiso"]),
        ("large", []),
        ("Confirmed", []),
        ("Booked for you at the table by the window at Moretti's", ["Moretti"]),
    ],
)
def test_first_words_of_titles_may_be_names(title, names):
    assert names_in([], [title]) == names


def test_names_are_bounded():
    many = [f"Ab{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)]
    assert names_in([f"We know {', '.join(many)}."], []) == many[:MOST_NAMES]
    assert names_in([f"{'so ' * 10_000}said Moretti."], []) == []


def test_phrases_of_the_session_come_first_and_no_phrase_twice():
    assert fit_phrases(["Da Marco"], ["Zed", "Da Marco", " ", "Yankee"]) == ["Da Marco", "Zed", "Yankee"]
    assert len(fit_phrases(["a"] * (MAX_PHRASES - 1), ["b", "c"])) == MAX_PHRASES


# --- sessions -----------------------------------------------------------------------------


def names(call):
    return call.recognition.streams[-1].options.names


async def test_session_favours_the_names_of_its_definition():
    choice = {"type": "object", "properties": {"room": {"type": "string", "enum": ["Belvedere", "small"]}}}
    start = Start(
        system_prompt=PROMPT,
        phrases=["Da Marco"],
        tools=[Tool(name="book", description="Books rooms of the Excelsior.", parameters=choice)],
        steps=[Step(name="first", instructions="Speak of Positano.")],
        collect=[CollectField(name="dish", kind="choice", values=["Carbonara", "soup"])],
    )
    call = await open_call(start)
    assert call.recognition.streams[-1].options.phrases == ["Da Marco"]
    assert set(names(call)) == {
        "Miramar", "Moretti", "Belvedere", "Excelsior", "Positano", "Carbonara"
    }  # fmt: skip
    await call.end()


@pytest.mark.parametrize(
    ("config", "language"), [(AgentConfig(boost_names=False), "en"), (AgentConfig(), "de")]
)
async def test_names_are_favoured_only_in_english_and_where_it_is_set(config, language):
    call = await open_call(Start(system_prompt=PROMPT, language=language), config=config)
    assert names(call) == []
    await call.end()


async def test_names_of_a_tools_result_are_favoured_from_the_next_utterance_on():
    start = Start(system_prompt=PROMPT, tools=[Tool(name="find_doctor")])
    call = await open_call(start, answers=[calls(("find_doctor", {})), says("There is one.")])
    before = names(call)
    call.send(Text(text="Who is there?"))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output={"doctors": ["Okafor", "busy"]}))
    await call.wait_for(TurnMetrics)
    await call.until(8_000)
    assert names(call) == ["Okafor", *before]
    await call.end()


async def test_update_of_the_prompt_changes_the_names():
    call = await open_call(Start(system_prompt=PROMPT))
    assert "Moretti" in names(call)
    await call.request(Update(system_prompt="Ask for Doctor Okafor."), Updated)
    await call.until(2_000)
    assert names(call) == ["Okafor"]
    await call.end()


async def test_texts_that_do_not_change_are_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(expected_names, "names_of", lambda *texts: read.append(texts) or ["Moretti"])
    call = await open_call(Start(system_prompt=PROMPT), answers=[says("Hello."), says("Hi.")])
    for count, text in enumerate(["Hello?", "Hi?"], 1):
        call.send(Text(text=text))
        await call.wait_for(TurnMetrics, count)
    assert len(read) == 1
    await call.end()

"""``/v1/agent``: what the agent has, asked of the agent itself."""

from __future__ import annotations

import asyncio
import gc
import logging
from types import SimpleNamespace

import msgspec
import pytest
from fake_agent import polite
from listening_gateway import until

from parley import protocol
from parley.errors import ModelUnavailableError, TooManySessionsError
from parley_client.errors import CallLostError, ConnectError
from parley_gateway import agent_descriptions
from parley_gateway.security.keys import new_key

DESCRIPTION = protocol.AgentDescription(
    recognizer="hears_german",
    recognizers=["hears_german"],
    language_model="qwen3",
    synthesizers=["espeak"],
    languages=["en", "de", "de-at", "fr"],
    voices=["man-1"],
    tools=["get_weather"],
    examples=["hello"],
)


def describing(**changes):
    """An agent that describes itself, with changes."""
    described = msgspec.structs.replace(DESCRIPTION, **changes)

    async def agent(stream):
        frame = await stream.frames.get()
        start = protocol.decode_message(frame.message)
        assert start.describe
        assert start.greeting == start.system_prompt == ""
        # The agent chooses the language: it may lack any.
        assert start.language == ""
        await tell(stream, described)

    return agent


async def tell(stream, described=DESCRIPTION):
    stream.say(protocol.Connected(session_id="fake", output_sample_rate=22_050, agent=described))
    while (frame := await stream.frames.get()) is not None:
        if frame.end:
            stream.hang_up()
        stream.acknowledge(frame)
    stream.end()


def understanding(languages, silent=()):
    """What an agent has whose recognisers understand these languages; some may be silent."""
    return {"recognized_languages": languages, "unavailable_recognizers": silent}


@pytest.mark.parametrize(
    ("understood", "languages"),
    [
        (["en", "de"], ["en", "de", "de-at"]),
        (["de"], ["de", "de-at"]),
        (["ja"], []),
        # An agent of an earlier version, or one whose recognisers do not answer: what is spoken.
        (None, DESCRIPTION.languages),
    ],
)
async def test_languages_are_those_that_are_spoken_and_understood(gateway, understood, languages):
    one = await gateway(describing(**understanding(understood)))
    answer = await one.http.get("/v1/agent")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "recognizer": "hears_german",
        "recognizers": ["hears_german"],
        "language_model": "qwen3",
        "language_models": ["qwen3"],
        "demonstration": False,
        "synthesizers": ["espeak"],
        "languages": languages,
        "voices": ["man-1"],
        "tools": ["get_weather"],
        "examples": ["hello"],
        "default_prompt": False,
        "agent": None,
    }
    (call_id,) = one.agents[0].call_ids
    assert call_id.startswith(protocol.CANARY_PREFIX), "it takes no caller's place"


async def test_the_agent_is_asked_once_for_many_and_again_later(gateway, monkeypatch):
    one = await gateway(describing())
    for _ in range(3):
        await one.http.get("/v1/agent")
    assert len(one.agents[0].call_ids) == 1
    monkeypatch.setattr(agent_descriptions, "_CACHE_S", 0.0)
    await one.http.get("/v1/agent")
    assert len(one.agents[0].call_ids) == 2


async def test_an_agent_that_does_not_tell_is_an_error_and_so_is_none(gateway, monkeypatch):
    monkeypatch.setattr(agent_descriptions, "_FAILURE_CACHE_S", 0.0)
    one = await gateway(polite)
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
    one.gateway.servers.all[0]._is_reachable = False
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server_ready")


async def mute(stream):
    """Takes a call and answers nothing."""
    await stream.frames.get()


@pytest.mark.parametrize(
    "failure",
    [
        ConnectError("down"),
        ModelUnavailableError("gone"),
        TooManySessionsError("full"),
        CallLostError("lost"),
        polite,
    ],
)
async def test_another_server_tells_where_one_does_not(gateway, failure):
    one = await gateway(failure, describing())
    answer = await one.http.get("/v1/agent")
    assert answer.status_code == 200, answer.text
    assert answer.json()["recognizer"] == "hears_german"


async def test_another_server_tells_where_one_does_not_answer_in_time(gateway, monkeypatch):
    monkeypatch.setattr(agent_descriptions, "_TOTAL_TIMEOUT_S", 3.0)
    one = await gateway(mute, describing(), servers={"retry_s": 50.0, "retry_max_s": 50.0})
    answer = await one.http.get("/v1/agent")
    assert answer.status_code == 200, answer.text
    assert [server.is_ready for server in one.gateway.servers.all] == [False, True]
    await until(one.agents[0].streams[0].cancelled.is_set)


async def test_description_is_read_from_another_server_after_a_loss(gateway):
    one = await gateway(describing(), describing())
    assert (await one.http.get("/v1/agent")).status_code == 200
    one.gateway.servers.all[0]._is_reachable = False
    assert (await one.http.get("/v1/agent")).status_code == 200
    assert [len(agent.call_ids) for agent in one.agents] == [1, 1]


async def test_agent_without_a_server_has_a_code_of_its_own(gateway):
    one = await gateway(ConnectError("one is down"), CallLostError("the other broke off"))
    answer = await one.http.get("/v1/agent")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retryable"]) == (503, "no_server_ready", True)
    assert "the other broke off" in error["message"]
    assert "retry-after" in answer.headers


async def test_the_limit_counts_for_all_servers_together(gateway, monkeypatch):
    monkeypatch.setattr(agent_descriptions, "_TOTAL_TIMEOUT_S", 1.5)
    one = await gateway(mute, mute, mute)
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server_ready")
    assert [len(agent.call_ids) for agent in one.agents] == [1, 1, 1]


async def test_only_so_many_servers_are_asked(gateway):
    failures = [ConnectError("down")] * 3
    one = await gateway(*failures, servers={"attempts": 2, "retry_s": 50.0, "retry_max_s": 50.0})
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server_ready")
    assert sorted(server.is_ready for server in one.gateway.servers.all) == [False, False, True]


async def test_refusal_of_a_server_is_passed_on(gateway):
    one = await gateway(TooManySessionsError("full"), ConnectError("down"))
    answer = await one.http.get("/v1/agent")
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_sessions")


async def test_agent_description_without_the_scope_is_refused(gateway, tmp_path):
    key = new_key("reader", ["transcribe"])
    keys = tmp_path / "keys.toml"
    keys.write_text(key.line + "\n")
    one = await gateway(describing(), security={"keys_file": str(keys)})
    assert (await one.http.get("/v1/agent")).status_code == 401
    answer = await one.http.get("/v1/agent", headers={"Authorization": f"Bearer {key.secret}"})
    assert answer.status_code == 403
    assert one.agents[0].call_ids == []


async def test_requests_that_waited_for_a_failure_do_not_repeat_it(gateway, monkeypatch):
    async def silent(stream):
        await stream.frames.get()
        stream.say(protocol.Connected(session_id="s", output_sample_rate=22_050))  # an older agent
        while (frame := await stream.frames.get()) is not None:
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()

    monkeypatch.setattr(agent_descriptions, "_FAILURE_CACHE_S", 60.0)
    one = await gateway(silent)
    answers = await asyncio.gather(*(one.http.get("/v1/agent") for _ in range(5)))
    assert {answer.status_code for answer in answers} == {503}
    assert len(one.agents[0].call_ids) == 1


async def post(one, **options):
    answer = await one.http.post("/v1/sessions", json=options)
    code = answer.json()["error"]["code"] if answer.status_code != 201 else ""
    return answer.status_code, code


@pytest.mark.parametrize(
    ("described", "options", "expected"),
    [
        *(
            (understanding(["en", "de"]), {"language": language}, (400, "unsupported_language"))
            for language in ("ja", "fr", "xx", "german")
        ),
        *(
            (understanding(["en", "de"]), {"language": language}, (201, ""))
            for language in ("de", "de-CH", "de_AT", "en-GB", "")
        ),
        # Unchecked while a recogniser is silent; an agent of an earlier version does not report those.
        *(
            (
                {"recognized_languages": known, "unavailable_recognizers": silent},
                {"language": "ja"},
                (201, ""),
            )
            for known, silent in ((["en"], ["whisper"]), (None, []), (["en"], None))
        ),
        *(
            ({}, {"voice": voice}, (400, "unsupported_voice"))
            for voice in ("man-2", "Man-1", "espeak/man-2", "man-1/espeak")
        ),
        *(({}, {"voice": voice}, (201, "")) for voice in ("man-1", "espeak/man-1")),
        ({"voices": None}, {"voice": "x"}, (201, "")),
    ],
)
async def test_options_of_a_session_are_checked_by_the_description(gateway, described, options, expected):
    one = await gateway(describing(**described))
    assert await post(one, **options) == expected
    assert expected[0] == 201 or len(one.agents[0].call_ids) == 1


async def test_refusal_of_a_voice_names_the_possible_ones(gateway):
    one = await gateway(describing())
    answer = await one.http.post("/v1/sessions", json={"voice": "man-2"})
    assert answer.json()["error"]["message"].endswith("possible are man-1")


async def test_a_session_does_not_depend_on_a_server_that_does_not_describe_its_agent(gateway, monkeypatch):
    monkeypatch.setattr(agent_descriptions, "_CHECK_S", 0.05)

    async def silent(stream):
        while await stream.frames.get() is not None:
            pass

    for behaviour in (polite, silent):
        one = await gateway(behaviour)
        assert await post(one, language="ja", voice="x") == (201, "")


async def test_a_session_waits_once_for_the_description(gateway, monkeypatch):
    waits = []

    async def wait(tasks, *, timeout=None):  # noqa: ASYNC109 - as of asyncio
        waits.append(timeout)
        return set(), set(tasks)

    one = await gateway(polite)
    with monkeypatch.context() as patched:
        patched.setattr(agent_descriptions, "asyncio", SimpleNamespace(**vars(asyncio) | {"wait": wait}))
        assert await post(one, language="ja", voice="x") == (201, "")
    assert waits == [agent_descriptions._CHECK_S]


@pytest.mark.parametrize(
    ("failure", "level"),
    [(TooManySessionsError("full"), logging.DEBUG), (ValueError("odd"), logging.WARNING)],
)
async def test_a_failure_after_the_sessions_stopped_waiting_is_logged_once(
    gateway, monkeypatch, caplog, failure, level
):
    monkeypatch.setattr(agent_descriptions, "_CHECK_S", 0.0)
    monkeypatch.setattr(agent_descriptions, "_FAILURE_CACHE_S", 0.0)
    caplog.set_level(logging.DEBUG, agent_descriptions.__name__)
    one = await gateway(describing())
    answered = asyncio.Event()
    unread = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))

    async def fail(server, agent):
        await answered.wait()
        raise failure

    monkeypatch.setattr(one.gateway.calls, "describe", fail)
    assert await post(one, language="ja") == (201, "")
    asking = one.gateway.descriptions._own.asking
    assert not asking.done()
    answered.set()
    await asyncio.wait([asking])
    assert await post(one, language="ja") == (201, "")
    assert one.gateway.descriptions._own.asking is not asking
    del asking
    gc.collect()
    assert unread == []
    levels = [record.levelno for record in caplog.records if "voices of sessions" in record.message]
    assert levels[:1] == [level]


async def test_a_request_to_the_agent_ends_with_the_gateway(gateway, monkeypatch):
    monkeypatch.setattr(agent_descriptions, "_CHECK_S", 0.0)
    one = await gateway(mute)
    assert await post(one, language="ja") == (201, "")
    await one.gateway.descriptions.aclose()
    assert one.gateway.descriptions._own.asking.cancelled()


async def test_sessions_and_the_page_share_a_description(gateway):
    one = await gateway(describing(**understanding(["en", "de"])))
    assert (await one.http.get("/v1/agent")).status_code == 200
    assert await post(one, language="ja") == (400, "unsupported_language")
    assert len(one.agents[0].call_ids) == 1


async def test_a_session_that_names_no_language_asks_nothing(gateway):
    one = await gateway(describing())
    assert await post(one) == (201, "")
    assert one.agents[0].call_ids == []

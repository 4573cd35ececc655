"""Agents that servers define: how clients list them, choose one, and are kept to theirs."""

import json
from dataclasses import replace

import msgspec
import pytest
from describing_agent import CLINIC, RESTAURANT, defining
from fake_agent import polite, refusing
from listening_gateway import receive
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley.errors import UnknownAgentError
from parley.protocol import Start
from parley_gateway import agent_descriptions
from parley_gateway.security.keys import new_key
from parley_gateway.security.principal import ANONYMOUS


@pytest.fixture
def keyed(gateway, tmp_path):
    """Starts a gateway with a key for some agents; returns it, the key's headers, and the sessions."""

    async def start(agents):
        key = new_key("kiosk", ["agent"], agents=agents)
        (tmp_path / "keys.toml").write_text(key.line + "\n")
        started = []
        one = await gateway(
            defining(RESTAURANT, CLINIC, started=started), security={"keys_file": str(tmp_path / "keys.toml")}
        )
        return one, {"Authorization": f"Bearer {key.secret}"}, started

    return start


def error_of(answer):
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["retryable"]


async def names(one, headers=None):
    answer = await one.http.get("/v1/agents", headers=headers)
    assert answer.status_code == 200, answer.text
    return [agent["name"] for agent in answer.json()["agents"]]


async def test_agents_are_listed_as_the_server_describes_them(gateway):
    one = await gateway(defining(CLINIC, RESTAURANT))
    answer = await one.http.get("/v1/agents")
    assert answer.json() == {"agents": msgspec.to_builtins([CLINIC, RESTAURANT]), "own": True, "calls": False}


@pytest.mark.parametrize("behaviour", [defining(), polite])
async def test_servers_without_agents_list_none(gateway, behaviour):
    assert await names(await gateway(behaviour)) == []


async def test_named_agent_is_described_by_a_session_of_its_own(gateway):
    one = await gateway(defining(RESTAURANT, CLINIC))
    own = (await one.http.get("/v1/agent")).json()
    assert (own["language_model"], own["tools"], own["default_prompt"]) == ("qwen3", [], True)
    assert own["agent"] is None
    for _ in range(3):
        named = (await one.http.get("/v1/agent?name=restaurant")).json()
        assert (named["language_model"], named["tools"], named["default_prompt"]) == (
            "restaurant",
            ["book"],
            False,
        )
        assert named["agent"] == msgspec.to_builtins(RESTAURANT)
    assert len(one.agents[0].call_ids) == 2, "each is asked for once"


async def test_description_of_an_agent_that_is_gone_is_forgotten(gateway, monkeypatch):
    defined = [CLINIC, RESTAURANT]
    one = await gateway(defining(defined))
    for name in ("clinic", "restaurant"):
        assert (await one.http.get(f"/v1/agent?name={name}")).status_code == 200
    defined.remove(CLINIC)
    monkeypatch.setattr(agent_descriptions, "_CACHE_S", 0.0)
    assert error_of(await one.http.get("/v1/agent?name=clinic"))[:2] == (404, "unknown_agent")
    assert (await one.http.get("/v1/agent?name=restaurant")).status_code == 200
    assert list(one.gateway.descriptions._named) == ["restaurant"]


@pytest.mark.parametrize("name", ["restorant", "x" * 10_000])
async def test_unknown_agent_is_refused_before_a_session(gateway, name):
    one = await gateway(defining(RESTAURANT))
    answer = await one.http.get("/v1/agent", params={"name": name})
    assert error_of(answer) == (404, "unknown_agent", False)
    if len(name) < 64:
        answer = await one.http.post("/v1/sessions", json={"agent": name})
        assert error_of(answer) == (404, "unknown_agent", False)
        assert "did you mean restaurant?" in answer.json()["error"]["message"]


async def test_agent_of_a_new_file_is_found_behind_a_cached_description(gateway, monkeypatch):
    defined = [CLINIC]
    one = await gateway(defining(defined))
    assert await names(one) == ["clinic"]
    defined.append(RESTAURANT)
    assert error_of(await one.http.post("/v1/sessions", json={"agent": "restaurant"}))[0] == 404
    assert len(one.agents[0].call_ids) == 1, "a description of this second is not asked for again"
    monkeypatch.setattr(agent_descriptions, "_RENEW_S", 0.0)
    assert await one.create(agent="restaurant")
    assert len(one.agents[0].call_ids) == 2


async def test_first_agent_of_a_server_is_found_behind_a_cached_description(gateway, monkeypatch):
    defined = []
    one = await gateway(defining(defined))
    assert await names(one) == []
    defined.append(RESTAURANT)
    monkeypatch.setattr(agent_descriptions, "_RENEW_S", 0.0)
    found = await one.gateway.descriptions.find_agent(lambda agent: agent.name == "restaurant")
    assert found is not None


async def test_session_reaches_the_server_with_its_agent(gateway):
    started = []
    one = await gateway(defining(RESTAURANT, started=started))
    async with one.stream(await one.create(agent="restaurant")) as socket:
        await receive(socket, "connected")
    assert [(start["agent"], start.get("language")) for start in started] == [("restaurant", None)]


async def test_session_depends_on_no_description(gateway):
    one = await gateway(polite)
    assert await one.create(agent="restaurant")


async def test_error_of_a_limited_key_names_no_other_agent(keyed):
    one, headers, _ = await keyed(["restaurant", "restaurants"])
    for answer in (
        await one.http.get("/v1/agent?name=restaurants", headers=headers),
        await one.http.post("/v1/sessions", json={"agent": "restaurants"}, headers=headers),
    ):
        assert error_of(answer)[:2] == (404, "unknown_agent")
        message = answer.json()["error"]["message"]
        assert "did you mean restaurant?" in message
        assert "clinic" not in message


@pytest.mark.parametrize(("allowed", "status"), [(["restaurant"], 403), (["", "restaurant"], 200)])
async def test_own_agent_is_described_to_keys_that_may_call_it(keyed, allowed, status):
    one, headers, _ = await keyed(allowed)
    answer = await one.http.get("/v1/agent", headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("allowed", "agent", "expected"),
    [
        (["restaurant"], "restaurant", 201),
        (["restaurant"], "clinic", 403),
        (["restaurant"], "unknown", 403),
        (["restaurant"], "", 403),
        (["", "clinic"], "", 201),
        ([], "", 403),
    ],
)
async def test_key_creates_sessions_of_its_agents_only(keyed, allowed, agent, expected):
    one, headers, _ = await keyed(allowed)
    answer = await one.http.post("/v1/sessions", json={"agent": agent}, headers=headers)
    assert answer.status_code == expected
    if expected == 403:
        assert error_of(answer) == (403, "not_permitted", False)
        assert "clinic" not in answer.text or agent == "clinic", "other agents are not named"


async def test_key_lists_and_describes_its_agents_only(keyed):
    one, headers, _ = await keyed(["restaurant"])
    answer = await one.http.get("/v1/agents", headers=headers)
    assert answer.json() == {"agents": [msgspec.to_builtins(RESTAURANT)], "own": False, "calls": False}
    answer = await one.http.get("/v1/agent?name=clinic", headers=headers)
    assert error_of(answer) == (403, "not_permitted", False)


async def test_key_reads_no_names_of_other_agents_in_errors(keyed):
    one, headers, _ = await keyed(["restaurant", "klinic"])
    asked = await one.http.get("/v1/agent?name=klinic", headers=headers)
    created = await one.http.post("/v1/sessions", json={"agent": "klinic"}, headers=headers)
    wanted = {"session": {"type": "realtime", "prompt": {"id": "klinic"}}}
    secret = await one.http.post("/v1/realtime/client_secrets", json=wanted, headers=headers)
    for answer in (asked, created, secret):
        assert answer.status_code == 404
        assert "clinic" not in answer.text
        assert "restaurant" in answer.text


async def test_key_reads_no_names_of_other_agents_in_a_servers_refusal(gateway):
    one = await gateway(
        refusing(UnknownAgentError("no agent 'klinic' on this server (did you mean clinic?)"))
    )
    principal = replace(ANONYMOUS, agents=frozenset(["klinic"]))
    for who, hidden in ((principal, True), (ANONYMOUS, False)):
        with pytest.raises(UnknownAgentError) as refused:
            async with one.gateway.calls.open(Start(agent="klinic"), principal=who, api="test"):
                pass
        assert ("clinic" not in str(refused.value)) is hidden


async def test_description_of_the_servers_own_agent_needs_its_permission(keyed):
    one, headers, _ = await keyed(["restaurant"])
    assert error_of(await one.http.get("/v1/agent", headers=headers)) == (403, "not_permitted", False)
    one, headers, _ = await keyed(["", "restaurant"])
    assert (await one.http.get("/v1/agent", headers=headers)).status_code == 200


async def test_token_has_the_agents_of_its_key(keyed):
    one, headers, _ = await keyed(["restaurant"])
    token = (await one.http.post("/v1/tokens", headers=headers)).json()["token"]
    assert await names(one, {"Authorization": f"Bearer {token}"}) == ["restaurant"]


# --- OpenAI Realtime --------------------------------------------------------------------------


async def open_realtime(one, query, headers=None, **session):
    """Send one ``session.update``; returns ``session.created`` and the answer to the update."""
    url = f"{one.ws_url}/v1/realtime{query}"
    async with connect(url, compression=None, additional_headers=headers) as socket:
        created = await receive(socket, "session.created")
        update = {"type": "session.update", "session": {"type": "realtime", **session}}
        await socket.send(json.dumps(update))
        return created, json.loads(await socket.recv())


@pytest.mark.parametrize(
    ("query", "session", "agent"),
    [
        ("?model=restaurant", {}, "restaurant"),
        ("?model=restaurant", {"prompt": {"id": "clinic"}}, "clinic"),
        ("?model=gpt-realtime", {"prompt": {"id": "clinic"}}, "clinic"),
        ("?model=gpt-realtime", {}, ""),
        ("?model=another-model", {}, ""),
        ("", {}, ""),
    ],
)
async def test_realtime_model_or_prompt_chooses_the_agent(gateway, query, session, agent):
    started = []
    one = await gateway(defining(RESTAURANT, CLINIC, started=started))
    created, answer = await open_realtime(one, query, **session)
    assert created["session"]["model"] == (query.partition("=")[2] or "parley")
    assert answer["type"] == "session.updated"
    assert [start.get("agent", "") for start in started] == [agent]


async def test_realtime_model_chooses_an_agent_whose_name_begins_as_the_servers_own(gateway):
    started = []
    one = await gateway(defining(msgspec.structs.replace(RESTAURANT, name="parley-desk"), started=started))
    await open_realtime(one, "?model=parley-desk")
    assert [start["agent"] for start in started] == ["parley-desk"]


async def test_openais_sdk_chooses_the_agent_as_livekit_uses_it(gateway):
    """LiveKit's plugin repeats the model in its first update, without a value for what it does not set."""
    started = []
    one = await gateway(defining(RESTAURANT, started=started))
    client = AsyncOpenAI(base_url=f"{one.url}/v1", api_key="none")
    audio = {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "noise_reduction": None,
            "transcription": {"model": "gpt-4o-transcribe"},
            "turn_detection": {"type": "semantic_vad", "eagerness": "medium"},
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "speed": 1.0, "voice": "marin"},
    }
    async with client, client.realtime.connect(model="restaurant") as connection:
        assert (await connection.recv()).session.model == "restaurant"
        for session in (
            {"model": "restaurant", "audio": audio, "tool_choice": "auto", "max_output_tokens": "inf"},
            {"instructions": ""},
        ):
            await connection.session.update(session={"type": "realtime", "tracing": None, **session})
            assert (await connection.recv()).type == "session.updated"
    (start,) = started
    assert (start["agent"], start["turn"]["eagerness"]) == ("restaurant", "normal")
    assert not {"system_prompt", "voice", "tools"} & set(start)
    assert start["silence"]["prompt_after_ms"] is None
    assert not any(b'"update"' in frame.message for frame in one.agents[0].streams[-1].seen)


async def test_openais_model_asks_for_no_description(gateway):
    one = await gateway(defining(RESTAURANT))
    for model in (
        "gpt-realtime",
        "gpt-4o-realtime-preview-2024-12-17",
        "gpt-realtime-mini",
        "gpt-5",
        "parley",
    ):
        await open_realtime(one, f"?model={model}")
    assert not any(call_id.startswith("canary-") for call_id in one.agents[0].call_ids)


async def test_client_secret_keeps_the_agent(gateway):
    started = []
    one = await gateway(defining(RESTAURANT, started=started))
    for session in ({"model": "restaurant"}, {"prompt": {"id": "restaurant"}}):
        wanted = {"session": {"type": "realtime", **session}}
        secret = (await one.http.post("/v1/realtime/client_secrets", json=wanted)).json()
        assert secret["session"]["prompt"] == session.get("prompt")
        await open_realtime(one, "", {"Authorization": f"Bearer {secret['value']}"})
    assert [start["agent"] for start in started] == ["restaurant", "restaurant"]


async def test_client_secret_of_unknown_prompt_is_refused(gateway):
    one = await gateway(defining(RESTAURANT))
    wanted = {"session": {"type": "realtime", "prompt": {"id": "restorant"}}}
    answer = await one.http.post("/v1/realtime/client_secrets", json=wanted)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_agent")


async def test_key_cannot_choose_other_agents_by_model_or_prompt(keyed):
    one, headers, started = await keyed(["restaurant"])
    with pytest.raises(InvalidStatus) as refused:
        await open_realtime(one, "?model=clinic", headers)
    assert refused.value.response.status_code == 403
    _, answer = await open_realtime(one, "?model=restaurant", headers, prompt={"id": "clinic"})
    assert answer["error"]["code"] == "not_permitted"
    _, answer = await open_realtime(one, "?model=gpt-realtime", headers)
    assert answer["error"]["code"] == "not_permitted"
    assert started == []


async def test_model_is_refused_while_no_server_says_which_agents_it_has(gateway):
    one = await gateway(defining(RESTAURANT))
    one.gateway.servers.all[0]._is_reachable = False
    with pytest.raises(InvalidStatus) as refused:
        await open_realtime(one, "?model=restaurant")
    assert refused.value.response.status_code == 503

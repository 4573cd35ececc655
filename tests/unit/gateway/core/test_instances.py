"""Ids name the gateway that made them, and still cannot be guessed."""

import re
import uuid

import pytest
from listening_gateway import until
from websockets.exceptions import InvalidStatus

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.instances import check_instance, choose_instance, mark
from parley_gateway.security.keys import new_key
from parley_gateway.settings import load_settings


def test_a_gateway_has_the_name_that_it_is_given():
    assert choose_instance("gateway-0", {"POD_NAME": "x"}) == "gateway-0"


def test_another_name_is_made_of_the_pods_or_hosts_and_does_not_reveal_it():
    pod = choose_instance("", {"POD_NAME": "gateway-7d9f-x2"})
    assert re.fullmatch("[0-9a-f]{8}", pod)
    assert pod == choose_instance("", {"POD_NAME": "gateway-7d9f-x2"})
    assert len({pod, choose_instance("", {"POD_NAME": "gateway-7d9f-x3"}), choose_instance("", {})}) == 3


@pytest.mark.parametrize("name", ["a_b", "A", "a.b", "-a", "a-", "a/b", "a" * 64, "a\n"])
def test_a_name_is_safe_in_an_url(name):
    with pytest.raises(GatewaySettingsError, match="instance"):
        load_settings(flags={"listen": {"instance": name}})


@pytest.mark.parametrize("known", ["one_x", "x", "", "ONE_x", "a.b_x", "5e1c07aa-2b1f", "_x"])
def test_an_id_that_names_no_other_gateway_may_be_ones_own(known):
    check_instance("one", known)


async def test_a_session_of_another_gateway_is_refused_with_a_code_of_its_own(gateway):
    one = await gateway(listen={"instance": "one"})
    two = await gateway(listen={"instance": "two"})
    session_id = await one.create()
    assert session_id.startswith("one_")
    for method, path in (("GET", "/status"), ("DELETE", ""), ("POST", "/tools")):
        answer = await two.http.request(method, f"/v1/sessions/{session_id}{path}", content=b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "wrong_gateway")
        assert answer.json()["error"]["retryable"] is False
        assert "two" not in answer.text
    with pytest.raises(InvalidStatus) as refused:
        async with two.stream(session_id):
            pass
    assert refused.value.response.status_code == 404
    assert b"wrong_gateway" in refused.value.response.body
    unknown = await one.http.get("/v1/sessions/one_unknown/status")
    assert unknown.json()["error"]["code"] == "session_not_found"
    call = await two.http.post("/v1/realtime/calls/rtc_one_abc/hangup")
    assert (call.status_code, call.json()["error"]["code"]) == (404, "wrong_gateway")


async def test_session_ids_of_other_keys_look_unknown(gateway, tmp_path):
    ann, bob = new_key("ann", ["agent"]), new_key("bob", ["agent"])
    (tmp_path / "keys.toml").write_text(f"{ann.line}\n{bob.line}\n")
    one = await gateway(
        security={"keys_file": str(tmp_path / "keys.toml")},
        listen={"instance": "one"},
    )
    headers = {"Authorization": f"Bearer {ann.secret}"}
    made = [(await one.http.post("/v1/sessions", headers=headers)).json() for _ in range(8)]
    keys = [uuid.UUID(session["session_id"].removeprefix("one_")) for session in made]
    assert len(set(keys)) == 8
    assert {key.version for key in keys} == {4}  # 122 random bits
    assert all(session["token"].startswith("ek_one_") for session in made)
    own = made[0]["session_id"]
    answers = []
    for session_id in (own, mark("one", str(uuid.uuid4()))):
        path = f"/v1/sessions/{session_id}/status"
        answer = await one.http.get(path, headers={"Authorization": f"Bearer {bob.secret}"})
        answers.append((answer.status_code, answer.text.replace(session_id, "ID")))
        anonymous = await one.http.get(path)
        assert anonymous.status_code == 401
    assert answers[0] == answers[1]
    unknown = await one.http.get(f"/v1/sessions/two_{uuid.uuid4()}/status")
    assert unknown.status_code == 401
    await until(lambda: one.gateway.calls.count == 0)


async def test_a_token_of_one_gateway_opens_a_session_at_another_with_the_same_secret(gateway, tmp_path):
    secret, key = tmp_path / "secret", new_key("ann", ["agent"])
    secret.write_text("x" * 40)
    (tmp_path / "keys.toml").write_text(key.line + "\n")
    shared = {"token_secret_file": str(secret), "keys_file": str(tmp_path / "keys.toml")}
    one = await gateway(security=shared, listen={"instance": "one"})
    two = await gateway(security=shared, listen={"instance": "two"})
    issued = await one.http.post("/v1/tokens", headers={"Authorization": f"Bearer {key.secret}"}, json={})
    token = issued.json()["token"]
    assert token.startswith("ek_one_")
    for value in (token, token.replace("ek_one_", "ek_")):
        answer = await two.http.post("/v1/sessions", headers={"Authorization": f"Bearer {value}"})
        assert answer.status_code == 201
        assert answer.json()["session_id"].startswith("two_")

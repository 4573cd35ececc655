"""Who may not take a session over, and what a session may not cost."""

import asyncio
import json
import logging
from types import SimpleNamespace

import pytest
from gateways import MemoryStore
from listening_gateway import closed, receive, until
from resuming_agent import frame

from parley import protocol
from parley.checkpoint import HistoryState, SessionState
from parley_client.resumption import CallCheckpoint
from parley_gateway.apis.sessions.keeper import SessionKeeper
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.metrics import Metrics
from parley_gateway.security.principal import ANONYMOUS
from parley_gateway.security.watched import WatchedFile
from parley_gateway.takeover.sealing import Sealer, read_seal_keys
from parley_gateway.takeover.settings import TakeoverSettings


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Client:
    """One session that is open, and kept."""

    def __init__(self, socket, connected, checkpoint):
        self.socket = socket
        self.token = connected["resumption_token"]
        self.messages = checkpoint["state"]["handled"]

    async def say(self, *words):
        """Get an answer, and wait until the store has all that was said."""
        await self.socket.send(b"".join(map(frame, (*words, 0))))
        await receive(self.socket, "metrics")
        await self.socket.send(json.dumps({"type": "remember", "role": "system", "text": "said"}))
        self.messages += 1
        while True:
            state = (await receive(self.socket, "checkpoint"))["state"]
            if state["handled"] == self.messages and not state.get("unfinished"):
                return


async def opened(one, headers=None, **options):
    body = {"checkpoints": True, **options}
    answer = await one.http.post("/v1/sessions", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return one.stream(answer.json()["session_id"], additional_headers=headers or {})


async def kept(socket):
    """The session's first checkpoint is in the store."""
    connected = await receive(socket, "connected")
    return Client(socket, connected, await receive(socket, "checkpoint"))


async def take_over(one, token, headers=None, **resume):
    body = {"resume": {"token": token, **resume}}
    return await one.http.post("/v1/sessions", json=body, headers=headers)


def code_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


REFUSED = (410, "not_resumable")


async def test_the_token_of_another_key_opens_nothing(gateways, keys):
    (mine, others), security = keys
    one = await gateways.start(security=security)
    two = await gateways.start(security=security)
    async with await opened(one, bearer(mine)) as socket:
        client = await kept(socket)
        for gateway in (one, two):
            assert code_of(await take_over(gateway, client.token, bearer(others))) == REFUSED
            assert (await take_over(gateway, client.token)).status_code == 401
        await client.say(1)  # it was not taken
        assert (await take_over(two, client.token, bearer(mine))).status_code == 201


async def test_a_token_is_good_for_one_takeover(gateways, monkeypatch):
    # A gateway looks as often whether it still has its sessions.
    monkeypatch.setattr("parley_gateway.apis.sessions.kept._REFRESH_S", 0.1)
    one, two, three = [await gateways.start() for _ in range(3)]
    async with await opened(one) as socket:
        first = await kept(socket)
        answer = await take_over(two, first.token)
        async with two.stream(answer.json()["session_id"]) as after:
            second = await kept(after)
            await second.say(1)
            assert second.token != first.token
            assert (await closed(socket)) == (1008, "taken_over")
            assert code_of(await take_over(three, first.token)) == REFUSED
            assert code_of(await take_over(one, first.token)) == REFUSED
            assert (await take_over(three, second.token)).status_code == 201


async def test_a_client_that_never_got_the_next_token_may_use_the_last_one_again(gateways):
    one, two, three = [await gateways.start() for _ in range(3)]
    async with await opened(one) as socket:
        client = await kept(socket)
        await client.say(1)
        assert (await take_over(two, client.token)).status_code == 201  # and its answer is lost
        answer = await take_over(three, client.token)
        async with three.stream(answer.json()["session_id"]) as after:
            await (await kept(after)).say(2)
    said = [message.content for message in gateways.sessions[2][0].messages if message.role == "user"]
    assert said == ["1", "2"]


async def test_simultaneous_takeovers_have_one_winner(gateways):
    one, two, three = [await gateways.start() for _ in range(3)]
    async with await opened(one) as socket:
        client = await kept(socket)
        # As many as can read the entry before the first of them has claimed it.
        answers = await asyncio.gather(*(take_over(gateway, client.token) for gateway in (two, three) * 4))
        winners = [answer for answer in answers if answer.status_code == 201]
        assert winners
        assert {code_of(answer) for answer in answers if answer.status_code != 201} <= {REFUSED}
        sockets = []
        for answer in winners:
            gateway = two if "gateway-1" in answer.json()["session_id"] else three
            sockets.append(gateway.stream(answer.json()["session_id"]))
        still_open = 0
        for session in sockets:
            async with session as after:
                await receive(after, "connected")
                try:
                    await receive(after, "checkpoint")
                    still_open += 1
                except Exception:  # noqa: BLE001 - it was closed
                    assert (await closed(after)) == (1008, "taken_over")
        assert still_open <= 1


def before_claim(gateway, monkeypatch, do):
    """Do something between a gateway's look at a session and its first claim of it."""
    store = gateway.gateway.kept._store
    claim = store.claim

    async def claim_late(*arguments):
        monkeypatch.setattr(store, "claim", claim)
        await do()
        return await claim(*arguments)

    monkeypatch.setattr(store, "claim", claim_late)


async def test_a_duplicate_with_the_last_token_does_not_end_its_successor(gateways, monkeypatch):
    one, two, three = [await gateways.start() for _ in range(3)]
    async with await opened(one) as socket:
        first = await kept(socket)
        answer = await take_over(two, first.token)
        async with two.stream(answer.json()["session_id"]) as after:
            second = await kept(after)
            # With its first message the client shows that it has the next token.
            before_claim(three, monkeypatch, lambda: second.say(1))
            assert code_of(await take_over(three, first.token)) == REFUSED
            await second.say(2)


async def test_a_session_that_is_written_meanwhile_is_taken_over_as_it_is_then(gateways, monkeypatch):
    one, two = await gateways.start(), await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        before_claim(two, monkeypatch, lambda: client.say(1))
        answer = await take_over(two, client.token)
        async with two.stream(answer.json()["session_id"]) as after:
            await (await kept(after)).say(2)
    said = [message.content for message in gateways.sessions[1][0].messages if message.role == "user"]
    assert said == ["1", "2"]


@pytest.mark.parametrize(
    "token", ["", "x", "parley_resume_.", "parley_resume_" + "a" * 43 + ".gateway-0_" + "0" * 8 + "-" * 28]
)
async def test_tokens_that_were_never_issued(gateways, token):
    one = await gateways.start()
    assert code_of(await take_over(one, token)) == REFUSED
    assert (await take_over(one, token + "a" * 300)).status_code == 400


async def test_a_guessed_secret_of_a_session_that_is_there(gateways):
    one = await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        prefix, secret, name = client.token[:14], client.token[14:57], client.token[58:]
        for guess in ("A" * 43, secret[::-1], secret[:-1] + ("A" if secret[-1] != "A" else "B")):
            assert code_of(await take_over(one, f"{prefix}{guess}.{name}")) == REFUSED
        await client.say(1)


async def test_an_entry_that_was_changed_or_has_another_key_opens_nothing(gateways, keys_file, tmp_path):
    one = await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        await client.say(1)
        ((name, (epoch, data)),) = gateways.memory.entries.items()
        gateways.memory.entries[name] = epoch, data[:-1] + bytes([data[-1] ^ 1])
        assert code_of(await take_over(one, client.token)) == REFUSED
        gateways.memory.entries[name] = epoch, data
        other_keys = tmp_path / "other.keys"
        other_keys.write_text("A" * 43 + "=\n")
        gateways.keys_file = other_keys
        two = await gateways.start()
        assert code_of(await take_over(two, client.token)) == REFUSED
        gateways.keys_file = keys_file
        three = await gateways.start()
        assert (await take_over(three, client.token)).status_code == 201


async def test_an_earlier_state_in_the_place_of_a_later_one_opens_nothing(gateways):
    one, two = await gateways.start(), await gateways.start()
    async with await opened(one) as socket:
        first = await kept(socket)
        await first.say(1)
        ((name, (_, earlier)),) = gateways.memory.entries.items()
        answer = await take_over(two, first.token)
        async with two.stream(answer.json()["session_id"]) as after:
            second = await kept(after)
            await second.say(2)
            epoch, later = gateways.memory.entries[name]
            gateways.memory.entries[name] = epoch, earlier
            assert code_of(await take_over(one, first.token)) == REFUSED
            gateways.memory.entries[name] = epoch, later
            assert (await take_over(one, second.token)).status_code == 201


async def test_progress_of_a_client_is_checked(gateways):
    one = await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        for bad in ({"audio_ms": -1}, {"progress": {"response_id": 1}}, {"state": {"version": 1}}):
            assert (await take_over(one, client.token, **bad)).status_code == 400
        body = {"resume": {"token": client.token}, "system_prompt": "You are evil."}
        assert (await one.http.post("/v1/sessions", json=body)).status_code == 400
        await client.say(1)


@pytest.mark.parametrize("end", ["hangup", "delete"])
async def test_session_that_was_ended_is_not_resumable(gateways, end):
    one = await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        if end == "hangup":
            await socket.send(json.dumps({"type": "control", "action": "hangup"}))
        else:
            assert (await one.http.delete(f"/v1/sessions/{socket.session_id}")).status_code == 204
        await closed(socket)
    await until(lambda: one.gateway.calls.count == 0)
    assert code_of(await take_over(one, client.token)) == REFUSED


async def test_a_session_that_was_deleted_before_its_stream_came_is_over(gateways):
    one, two = await gateways.start(), await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        path = f"/v1/sessions/{(await take_over(two, client.token)).json()['session_id']}"
        gateways.memory.is_away = True
        assert code_of(await two.http.delete(path)) == (503, "takeover_unavailable")
        gateways.memory.is_away = False
        assert (await two.http.get(f"{path}/status")).json()["state"] == "waiting"
        assert (await two.http.delete(path)).status_code == 204
        assert code_of(await take_over(one, client.token)) == REFUSED
        assert (await two.http.get(f"{path}/status")).json()["reason"] == "deleted"


async def test_a_gateway_that_shuts_down_or_is_full_takes_no_session(gateways):
    one = await gateways.start()
    two = await gateways.start()
    full = await gateways.start(calls={"limit": 1})
    async with await opened(one) as socket, full.stream():
        client = await kept(socket)
        two.gateway.calls.drain_began.set()
        assert code_of(await take_over(two, client.token)) == (503, "shutting_down")
        assert code_of(await take_over(full, client.token)) == (429, "too_many_calls")
        await client.say(1)


async def test_a_client_that_asks_for_no_checkpoints_costs_the_store_nothing(gateways):
    one = await gateways.start()
    async with one.stream() as socket:
        assert (await receive(socket, "connected"))["resumption_token"] is None
        await socket.send(frame(1) + frame(0))
        await receive(socket, "metrics")
    assert not gateways.memory.entries


async def test_a_session_that_is_too_large_cannot_be_taken_over(gateways, caplog):
    one = await gateways.start({"record_bytes": 3_000})
    async with await opened(one) as socket:
        client = await kept(socket)
        with caplog.at_level(logging.WARNING, "parley.gateway"):
            for text in ("a" * 3_000, "b"):
                await socket.send(json.dumps({"type": "remember", "role": "user", "text": text}))
                await socket.send(frame(1) + frame(0))
                await receive(socket, "metrics")
        assert caplog.text.count("too large to be taken over") == 1
        assert code_of(await take_over(one, client.token)) == REFUSED
        await socket.send(frame(2) + frame(0))
        await receive(socket, "metrics")  # and the call goes on


def checkpoint(number, prompt="a"):
    """Of a call in which nothing was said."""
    return CallCheckpoint(
        number=number,
        settings=protocol.Start(system_prompt=prompt),
        history=HistoryState(),
        state=SessionState(version=1),
        settled=True,
        answers=[],
        sent=0,
        missing=frozenset(),
    )


def keep(keys_file, store, call, **settings):
    """Begin to keep a session; the entry in the store is `gateway-0_1`."""
    sealer = Sealer(WatchedFile(keys_file, read_seal_keys))
    keeper = SessionKeeper(TakeoverSettings(**settings), store, sealer, Metrics())
    about = {"session_id": "gateway-0_1", "owner": ANONYMOUS, "encoding": "pcm16", "claim": None}
    return keeper.keep(call, lambda _: None, **about)


async def test_the_last_state_of_a_connection_is_bounded_too(keys_file):
    store = MemoryStore()
    call = SimpleNamespace(messages=0, checkpoint=checkpoint(1))
    kept_session = keep(keys_file, store, call, record_bytes=3_000)
    await kept_session.finish(is_over=False)
    assert store.entries["gateway-0_1"][1] is not None
    call.checkpoint = checkpoint(1, "a" * 3_000)
    await kept_session.finish(is_over=False)
    # Nothing rather than a state that is too old.
    assert store.entries["gateway-0_1"] == (1, None)


async def test_an_event_waits_for_the_checkpoint_before_it_and_for_no_newer_one(keys_file):
    call = SimpleNamespace(messages=0, checkpoint=checkpoint(2))
    kept_session = keep(keys_file, MemoryStore(), call, hold_s=5.0)
    writer = asyncio.create_task(kept_session.run())
    await kept_session.on_checkpoint()
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    # The call is far ahead, and nothing is written any more.
    call.checkpoint = checkpoint(50)
    second, third = (asyncio.create_task(kept_session.on_checkpoint()) for _ in range(2))
    await second
    assert not third.done()
    third.cancel()


async def test_a_call_goes_on_without_its_store_and_is_kept_again_after_it(gateways):
    one = await gateways.start()
    async with await opened(one) as socket:
        client = await kept(socket)
        gateways.memory.is_away = True
        await socket.send(frame(1) + frame(0))
        await receive(socket, "metrics")
        assert code_of(await take_over(one, client.token)) == (503, "takeover_unavailable")
        gateways.memory.is_away = False
        await receive(socket, "checkpoint")
        answer = await take_over(one, client.token)
        async with one.stream(answer.json()["session_id"]) as after:
            await (await kept(after)).say(2)
    said = [message.content for message in gateways.sessions[0][-1].messages if message.role == "user"]
    assert said == ["1", "2"]


async def test_many_checkpoints_become_few_writes(gateways):
    one = await gateways.start({"writes_per_s": 1, "hold_s": 0.0})
    async with await opened(one) as socket:
        await kept(socket)
        before = gateways.memory.writes
        for number in range(100):
            message = {"type": "remember", "role": "user", "text": str(number)}
            await socket.send(json.dumps(message))
        checkpoint = await receive(socket, "checkpoint")
        while checkpoint["state"]["handled"] < 100 or checkpoint["state"].get("unfinished"):
            checkpoint = await receive(socket, "checkpoint")
        assert gateways.memory.writes - before < 10


async def test_no_token_is_logged(gateways, caplog):
    one = await gateways.start()
    two = await gateways.start()
    with caplog.at_level(logging.DEBUG):
        async with await opened(one) as socket:
            client = await kept(socket)
            answer = await take_over(two, client.token)
            async with two.stream(answer.json()["session_id"]) as after:
                second = await kept(after)
            other = "B" if client.token[20] == "A" else "A"
            await take_over(two, client.token[:20] + other + client.token[21:])
    events = [json.loads(one.message) for one in caplog.records if one.name == "parley.audit"]
    kinds = [event["event"] for event in events]
    assert kinds.count("session_resumed") == kinds.count("session_not_resumed") == 1
    lines = [line for line in caplog.text.splitlines() if "websockets" not in line]
    for token in (client.token, second.token):
        assert not any(token[14:57] in line for line in lines)


@pytest.mark.parametrize(
    "settings", [{"store": "redis://127.0.0.1:1"}, {"keys_file": "keys"}, {"store": "x", "keys_file": "keys"}]
)
async def test_settings_that_do_not_fit(settings, keys_file):
    if "keys_file" in settings:
        settings["keys_file"] = str(keys_file)
    with pytest.raises(GatewaySettingsError, match=r"takeover\.store"):
        SessionKeeper.of(TakeoverSettings(**settings), Metrics())

"""Webhooks, against a real server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json

import pytest
from local_http import local_http, response

from parley.calls import webhooks
from parley.calls.settings import WebhookSettings
from parley.calls.webhooks import Webhook, Webhooks, read_secret

KEY = b"0123456789abcdef01234567"


@pytest.fixture
async def http():
    async with local_http() as server:
        yield server


@pytest.fixture
def hooks(http, monkeypatch):
    """Makes webhooks of the local server with fast retries; ``outcomes`` has what became of each event."""
    monkeypatch.setattr(webhooks, "RETRY_AFTER_S", (0.0,) * 4)

    def make(*, private=("127.0.0.1",), **settings) -> Webhooks:
        named = {"url": http.url("/hook"), "events": ["call.ended"], "secret_file": "x", **settings}
        make.outcomes = []
        return Webhooks([Webhook(WebhookSettings(**named), KEY)], [], private, make.outcomes.append)

    return make


async def settle(made: Webhooks) -> None:
    await asyncio.wait(made._deliveries)
    await made.close()


async def test_event_is_posted_with_a_signature_that_others_can_check(http, hooks):
    made = hooks()
    made.post("call.ended", {"reason": "hangup"})
    await settle(made)
    (request,) = http.received
    assert (request.method, request.target) == ("POST", "/hook")
    sent = json.loads(request.body)
    assert (sent["type"], sent["data"]) == ("call.ended", {"reason": "hangup"})
    headers = request.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert hooks.outcomes == ["delivered"]


async def test_only_events_that_are_asked_for_are_posted(http, hooks):
    made = hooks()
    made.post("call.started", {})
    await made.close()
    assert not http.received


async def test_failed_delivery_is_tried_again_with_the_same_id(http, hooks):
    http.answers += [response(status="503 Busy"), response(status="429 Slow Down")]
    made = hooks()
    made.post("call.ended", {})
    await settle(made)
    assert len({one.headers["webhook-id"] for one in http.received}) == 1
    assert len(http.received) == 3
    assert hooks.outcomes == ["delivered"]


@pytest.mark.parametrize(
    ("status", "attempts", "outcome"),
    [("500 No", 5, "failed"), ("404 No", 1, "refused"), ("302 Found", 1, "refused")],
)
async def test_answer_decides_whether_to_try_again(http, hooks, status, attempts, outcome):
    http.answers += [response(status=status)] * 9
    made = hooks()
    made.post("call.ended", {})
    await settle(made)
    assert len(http.received) == attempts
    assert hooks.outcomes == [outcome]


async def test_server_that_does_not_answer_is_given_up(http, hooks, caplog):
    http.answers += [None] * 5
    made = hooks(timeout_ms=100)
    made.post("call.ended", {})
    await settle(made)
    assert hooks.outcomes == ["failed"]
    assert "no answer within 100 ms" in caplog.text


async def test_private_address_is_refused_where_it_is_not_allowed(http, hooks):
    made = hooks(private=())
    made.post("call.ended", {})
    await settle(made)
    assert not http.received
    assert hooks.outcomes == ["failed"]


async def test_summary_is_posted_only_where_it_is_asked_for(http, hooks):
    made, other = hooks(), hooks(summary=True)
    assert (made.want_summary, other.want_summary) == (False, True)
    for one in (made, other):
        one.post("call.ended", {"summary": "A table was booked."})
        await settle(one)
    assert [json.loads(one.body)["data"] for one in http.received] == [{}, {"summary": "A table was booked."}]


async def test_bytes_of_waiting_events_are_bounded(http, hooks, monkeypatch):
    monkeypatch.setattr(webhooks, "MAX_BYTES", 1_000)
    made = hooks()
    for size in (600, 600, 100):
        made.post("call.ended", {"step": "x" * size})
    await settle(made)
    assert sorted(hooks.outcomes) == ["delivered", "delivered", "dropped"]
    assert made._bytes == 0


async def test_waiting_events_are_bounded(http, hooks, monkeypatch):
    monkeypatch.setattr(webhooks, "MAX_WAITING", 2)
    made = hooks()
    for _ in range(5):
        made.post("call.ended", {})
    await settle(made)
    assert hooks.outcomes.count("dropped") == 3
    assert hooks.outcomes.count("delivered") == 2


async def test_owner_waits_for_deliveries_and_its_end_drops_them(http, hooks, monkeypatch):
    monkeypatch.setattr(webhooks, "_CLOSE_S", 0.05)
    http.answers.append(None)
    made, under_way = hooks(), []
    made.on_begin, made.on_end = lambda: under_way.append(1), under_way.pop
    made.post("call.ended", {})
    assert under_way
    await http.arrived.wait()
    await made.close()
    assert not under_way
    assert hooks.outcomes == ["dropped"]


@pytest.mark.parametrize("text", ["", "short", "whsec_!!!", "whsec_QUJD"])
def test_weak_or_malformed_keys_are_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - any text
        read_secret(text)


def test_key_is_read_as_it_is_written_elsewhere():
    assert read_secret(f"whsec_{base64.b64encode(KEY).decode()}\n") == read_secret(KEY.decode()) == KEY

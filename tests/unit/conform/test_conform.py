"""``parley conform`` against servers that break a protocol in one way each."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus

import numpy as np
import pytest
import soundfile
from websockets.asyncio.server import serve

from parley_client.cli.program import main
from parley_testing.conform import deepgram, openai_realtime, sessions, twilio
from parley_testing.conform.checks import run_checks
from parley_testing.conform.connection import FailedError, Target, expect_speech, to_mulaw

CREATED = {"type": "session.created", "event_id": "1", "session": {"type": "realtime", "id": "s"}}
UPDATED = {"type": "session.updated", "session": {}}
TONE = np.round(9_000 * np.sin(np.arange(16_000) / 8)).astype(np.int16)


@asynccontextmanager
async def server(*answers, refuses=None):
    """A WebSocket that sends these messages: the first at once, each other one when a message comes."""

    async def behave(socket):
        for number, answer in enumerate(answers):
            if number:
                await socket.recv()
            if answer is None:
                return
            await socket.send(answer if isinstance(answer, str) else json.dumps(answer))
        await socket.wait_closed()

    async def refuse(connection, _request):
        return connection.respond(refuses, "no")

    async with serve(behave, "127.0.0.1", 0, process_request=refuse if refuses else None) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def outcome_of(name, *answers, checks=openai_realtime.CHECKS, **options):
    check = next(check for check in checks.checks if check.name == name)
    async with server(*answers, **options) as url:
        (outcome,) = [one async for one in run_checks([check], Target(url, TONE, within_s=0.3))]
    return outcome.result, outcome.detail


async def test_a_check_passes():
    assert await outcome_of("session_created", CREATED) == ("passed", "")


@pytest.mark.parametrize(
    ("answers", "result", "detail"),
    [
        ([UPDATED], "failed", "first came session.updated"),
        ([CREATED | {"session": {"type": "realtime"}}], "failed", "a message cannot be read: KeyError: 'id'"),
        ([CREATED | {"session": None}], "failed", "a message cannot be read: TypeError"),
        (["{"], "failed", "a message cannot be read: JSONDecodeError"),
        (["[]"], "failed", "a message is no JSON object"),
        ([], "failed", "nothing more within 0.3 s; the last events: none"),
        ([None], "failed", "the connection ended"),
    ],
)
async def test_a_first_event_that_is_wrong(answers, result, detail):
    found, said = await outcome_of("session_created", *answers)
    assert (found, said[: len(detail)]) == (result, detail)


async def test_an_error_of_the_protocol_is_a_refusal():
    error = {"type": "error", "error": {"type": "invalid", "code": "unsupported", "message": "No images."}}
    refused = await outcome_of("image_item", CREATED, UPDATED, error)
    assert refused == ("refused", "unsupported: No images.")


async def test_events_that_do_not_come_are_named_with_those_that_did():
    found, detail = await outcome_of("item_retrieve", CREATED, UPDATED)
    wanted = "conversation.item.done or conversation.item.added or conversation.item.created"
    assert found == "failed"
    assert detail == f"no {wanted} within 0.3 s; the last events: session.created, session.updated"


async def test_a_refused_connection():
    refused = await outcome_of("session_created", refuses=HTTPStatus.NOT_FOUND)
    assert refused == ("refused", "HTTP 404: no")
    found, _ = await outcome_of("live_results", refuses=HTTPStatus.UNAUTHORIZED, checks=deepgram.CHECKS)
    assert found == "refused"


async def test_what_has_to_be_refused_fails_where_it_is_taken():
    found, detail = await outcome_of("live_wrong_parameter", checks=deepgram.CHECKS)
    assert (found, detail) == ("failed", "the stream was opened")
    found, _ = await outcome_of("beta_names", CREATED, UPDATED)
    assert found == "failed"


def test_silence_is_no_speech():
    with pytest.raises(FailedError, match="silent"):
        expect_speech(bytes(32_000), 16_000)
    with pytest.raises(FailedError, match="10 samples"):
        expect_speech(bytes(20), 16_000)
    expect_speech(to_mulaw(TONE), 8_000, "mulaw")
    with pytest.raises(FailedError, match="silent"):
        expect_speech(b"\xff" * 8_000, 8_000, "mulaw")


def test_every_check_has_a_name_of_its_own_and_a_title():
    for checks in (openai_realtime.CHECKS, deepgram.CHECKS, twilio.CHECKS, sessions.CHECKS):
        names = [check.name for check in checks.checks]
        assert len(set(names)) == len(names)
        assert all(check.title.endswith((".", ")")) and "\n" not in check.title for check in checks.checks)


def test_twilios_signature():
    # The example of Twilio's documentation on the security of webhooks.
    form = {
        "CallSid": "CA1234567890ABCDE",
        "Caller": "+14158675310",
        "Digits": "1234",
        "From": "+14158675310",
        "To": "+18005551212",
    }
    signed = twilio.sign("12345", "https://example.com/myapp.php?foo=1&bar=2", form)
    assert signed == {"X-Twilio-Signature": "L/OH5YylLD5NRKLltdqwSvS0BnU="}


@contextmanager
def running(*answers):
    """The URL of a server in a thread of its own."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), []

    async def hold(over):
        async with server(*answers) as url:
            urls.append(url)
            ready.set()
            await over.wait()

    over = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(hold(over),))
    thread.start()
    ready.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture
def question(tmp_path):
    soundfile.write(tmp_path / "question.wav", TONE, 16_000)
    return str(tmp_path / "question.wav")


def test_the_command(question, tmp_path, capsys):
    page, report = tmp_path / "page.html", tmp_path / "report.json"
    options = ["--protocol", "openai-realtime", "--within", "0.3", "--html", str(page), "--json", str(report)]
    checks = ["--only", "session_created", "--only", "session_update"]
    with running(CREATED) as url:
        assert main(["conform", "--url", url, *options, *checks, question]) == 1
        assert main(["conform", "--url", url, *options[:4], "--only", "session_created", question]) == 0
    assert "1 of 2 passed" in capsys.readouterr().out
    outcomes = json.loads(report.read_text())["checks"]
    assert [(one["name"], one["result"]) for one in outcomes] == [
        ("session_created", "passed"),
        ("session_update", "failed"),
    ]
    assert "no session.updated within 0.3 s" in page.read_text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--only", "dance"], "there is no check dance; there are session_created"),
        (["--url", "http://127.0.0.1:1"], "--url http://127.0.0.1:1: "),
        (["--url", "127.0.0.1:8080"], "does not begin with http://"),
        (["--url", "http://127.0.0.1:1/v1"], "leave /v1 out"),
        (["--protocol", "twilio"], "PARLEY_KEY has to be"),
    ],
)
def test_wrong_usage(question, capsys, options, problem):
    given = ["conform", "--protocol", "openai-realtime", "--url", "http://127.0.0.1:1", *options, question]
    assert main(given) == 2
    assert problem in capsys.readouterr().err


def test_a_recording_that_cannot_be_used(tmp_path, capsys):
    soundfile.write(tmp_path / "fast.wav", TONE, 44_100)
    for name in ("fast.wav", "none.wav"):
        path = str(tmp_path / name)
        assert main(["conform", "--protocol", "deepgram", "--url", "http://127.0.0.1:1", path]) == 2
        assert name in capsys.readouterr().err

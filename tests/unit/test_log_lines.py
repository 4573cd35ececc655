"""JSON log lines and the ids in them."""

from __future__ import annotations

import asyncio
import json
import logging
import select
import sys
import threading
from contextvars import copy_context

import pytest

from parley.errors import InvalidInputError, OverloadedError
from parley.inference import make_engine_name, session_of
from parley.logs import (
    MAX_LINE_BYTES,
    JsonFormatter,
    current_ids,
    log_ids,
    read_log_format,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


def line_of(message, *args, level=logging.WARNING, **options):
    options = {"exc_info": None, "sinfo": None, "extra": None, **options}
    record = logging.getLogger("parley.test").makeRecord(
        "parley.test", level, __file__, 1, message, args, options["exc_info"], extra=options["extra"]
    )
    return JsonFormatter("qwen3").format(record)


def raised(error):
    """The ``exc_info`` of an error that was raised."""

    def fail():
        raise error

    try:
        fail()
    except type(error):
        return sys.exc_info()


def test_a_line_has_only_what_there_is():
    line = json.loads(line_of("slow: %d", 3))
    at = line.pop("ts")
    assert at.endswith("Z")
    assert len(at) == len("2026-11-23T16:41:03.123Z")
    assert line == {"level": "warning", "source": "qwen3", "logger": "parley.test", "message": "slow: 3"}


def test_a_line_has_the_ids_of_its_context():
    with log_ids(session="s1", request="r1", traceparent=TRACEPARENT):
        line = json.loads(line_of("slow"))
    assert (line["session"], line["request"], line["trace_id"], line["span_id"]) == ("s1", "r1", TRACE, SPAN)
    assert "session" not in json.loads(line_of("slow"))


def test_inner_ids_replace_outer_ones_for_a_while():
    with log_ids(session="s1", traceparent=TRACEPARENT):
        with log_ids(request="r1"):
            assert (current_ids().session, current_ids().request) == ("s1", "r1")
        assert (current_ids().request, current_ids().trace_id) == ("", TRACE)


def test_the_id_of_a_request_to_a_model_names_its_session():
    name = make_engine_name("call-7")
    assert [session_of(text) for text in (name, f"{name}-3.1-llm1", "call-7", "")] == [
        "call-7",
        "call-7",
        "",
        "",
    ]
    with log_ids(request=f"{name}-3.1-llm1"):
        assert current_ids().session == "call-7"


def test_a_session_stays_whole_where_the_request_has_its_beginning():
    long = "a" * 60
    with log_ids(session=long), log_ids(request=make_engine_name(long)):
        assert current_ids().session == long


def test_requests_of_another_session_do_not_keep_this_one():
    with log_ids(session="s1"), log_ids(request=make_engine_name("s2")):
        assert current_ids().session == "s2"


def test_a_coroutine_that_is_closed_elsewhere_leaves_no_ids_there():
    async def wait():
        with log_ids(request="r1"):
            await asyncio.sleep(0)

    coroutine = wait()
    with log_ids(session="s1"):
        of_session = copy_context()
    of_session.run(coroutine.send, None)
    coroutine.close()
    assert current_ids().session == ""


async def test_tasks_inherit_ids_and_threads_do_not():
    seen = []

    async def look():
        await asyncio.sleep(0)
        seen.append(current_ids().session)

    with log_ids(session="s1"):
        task = asyncio.create_task(look())
        thread = threading.Thread(target=lambda: seen.append(current_ids().session))
        thread.start()
        thread.join()
    await task
    assert seen == ["", "s1"]


def test_errors_have_their_code():
    failed = json.loads(line_of("failed", exc_info=raised(OverloadedError("full"))))
    assert failed["code"] == "overloaded"
    assert failed["exception"].splitlines()[-1].endswith("OverloadedError: full")
    error = InvalidInputError("what the caller said")
    assert json.loads(line_of("%s", error.to_log(), extra=error.log_extra()))["code"] == "invalid_input"


def test_the_figures_of_a_turn_are_fields():
    facts = {"turn": 0, "outcome": "complete", "e2e_ms": 612.5, "other": 1}
    line = json.loads(line_of("turn over", extra=facts))
    assert {name: line[name] for name in ("turn", "outcome", "e2e_ms")} == {
        "turn": 0,
        "outcome": "complete",
        "e2e_ms": 612.5,
    }
    assert "other" not in line
    assert "e2e_ms" not in json.loads(line_of("turn over", extra={"e2e_ms": None}))


@pytest.mark.parametrize("text", ["a\nb\r\x1b[31m\x7f\x85\u2028\u202e", "\ud83d half", "zoë 日本"])
def test_a_line_is_one_line_of_ascii(text):
    line = line_of("%s", text)
    assert all(" " <= letter <= "~" for letter in line)
    assert json.loads(line)["message"] == text


def written(line):
    """Its bytes in a log."""
    return len(f"{line}\n".encode())


@pytest.mark.parametrize("letter", ["x", "\t", '"', "\x00", "\x7f", "é", "日", "🙂", "\ud83d"])
def test_a_line_fits_into_one_write_to_a_pipe(letter):
    line = line_of("%s", letter * 10_000)
    assert MAX_LINE_BYTES - 12 <= written(line) <= MAX_LINE_BYTES == select.PIPE_BUF
    message = json.loads(line)["message"]
    assert message
    assert (letter * 10_000).startswith(message)


def test_the_exception_is_shortened_before_the_message():
    failed = raised(ValueError("y" * 50_000 + " the end"))
    with log_ids(session="s1", request="r1", traceparent=TRACEPARENT):
        text = line_of("%s", "x" * 2_000, exc_info=failed, extra={"turn": 3})
    assert written(text) <= MAX_LINE_BYTES
    line = json.loads(text)
    assert (line["session"], line["request"], line["trace_id"], line["turn"]) == ("s1", "r1", TRACE, 3)
    assert line["message"] == "x" * 2_000
    assert line["exception"].startswith("Traceback")
    assert "\n[a part is left out]\n" in line["exception"]
    assert line["exception"].endswith(" the end")


def test_a_long_message_leaves_room_for_the_end_of_an_exception():
    failed = raised(ValueError("\x1b" * 9_000 + " the end"))
    text = line_of("%s", "\x1b" * 9_000, exc_info=failed)
    assert MAX_LINE_BYTES - 100 <= written(text) <= MAX_LINE_BYTES
    line = json.loads(text)
    assert len(line["message"]) > 300
    assert line["exception"].endswith(" the end")


def test_a_caller_cannot_make_a_line_longer_by_its_ids():
    with log_ids(session="é" * 5_000, request="\x00" * 5_000):
        text = line_of("%s", "x" * 9_000, exc_info=raised(ValueError("y" * 9_000)), extra={"code": "z" * 999})
    assert written(text) <= MAX_LINE_BYTES
    line = json.loads(text)
    assert len(line["message"]) > 500
    assert set(line["session"]) == {"é"}
    assert line["exception"].endswith("y")


def test_the_environment_names_the_format():
    assert read_log_format({}) == read_log_format({"PARLEY_LOG_FORMAT": ""}) == "text"
    assert read_log_format({"PARLEY_LOG_FORMAT": "json"}) == "json"
    with pytest.raises(ValueError, match="PARLEY_LOG_FORMAT is 'xml'; it must be text or json"):
        read_log_format({"PARLEY_LOG_FORMAT": "xml"})

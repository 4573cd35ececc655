import asyncio
import json
import logging
import threading

import numpy as np
import pytest
from fake_pb_utils import Request

from parley.errors import (
    ContextTooLongError,
    InferenceError,
    InvalidMessageError,
    ModelLoadingError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.inference import make_engine_name
from parley.triton.failures import read_failure, wire_text
from parley.triton.observability import log_to_triton
from parley.triton.response_thread import ResponseThread
from parley.triton.responses import Responder, answer, serve_tensors

DATA = {"X": np.array([1], np.int16)}


def kinds(request):
    return [entry[0] for entry in request.sender.sent]


def test_every_request_ends_with_one_final(pb_utils):
    request = Request()
    with Responder(pb_utils, request) as responder:
        assert responder.send(DATA)
        responder.finish()
        assert not responder.send(DATA)
    assert kinds(request) == ["data", "final"]


def test_an_only_response_carries_the_end_itself(pb_utils):
    request = Request()
    responder = Responder(pb_utils, request)
    responder.answer(DATA)
    responder.answer(DATA)
    responder.finish()
    assert kinds(request) == ["data", "final"]
    assert request.sender.sends == 1


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (OverloadedError("full"), "overloaded: full"),
        # The words of a caller are sent back, and are not logged.
        (InvalidMessageError("phrase 'Jane Doe' cannot be written"), "invalid_message"),
    ],
)
def test_errors_are_answered_and_logged(pb_utils, caplog, error, logged):
    request = Request()
    with Responder(pb_utils, request):
        raise error
    assert request.sender.sent == [("error", error.to_wire()), ("final",)]
    assert answer(pb_utils, error, lambda _: {}).error().message() == error.to_wire()
    lines = [one.message for one in caplog.records if one.name.startswith("parley.")]
    assert lines == [f"r1: {logged}", logged]


def test_a_request_that_breaks_the_common_run_fails_alone(pb_utils, caplog):
    served = []

    def serve(batch):
        served.append(len(batch))
        if any(len(tensors["X"]) == 0 for tensors in batch):
            raise IndexError("no rows")
        return [tensors if tensors["X"][0] else InferenceError("zero") for tensors in batch]

    requests = [Request({"X": np.array(rows)}) for rows in ([1], [], [0], [2])]
    first, broken, refused, last = serve_tensors(pb_utils, requests, serve)
    assert served == [4, 1, 1, 1, 1]
    for response, row in ((first, 1), (last, 2)):
        (tensor,) = response.output_tensors()
        assert tensor.as_numpy().tolist() == [row]
    assert broken.error().message() == "internal_error: IndexError: no rows"
    assert refused.error().message() == "inference_failed: zero"
    assert caplog.text.count("cannot be served") == 1


def test_unexpected_errors_are_answered_and_logged_with_their_trace(pb_utils, caplog):
    request = Request()
    with Responder(pb_utils, request):
        {}["missing"]
    assert request.sender.sent[0][1].startswith("internal_error: KeyError")
    assert "Traceback" in caplog.text


def test_cancellation_is_answered_and_goes_on(pb_utils):
    request = Request()
    with pytest.raises(asyncio.CancelledError), Responder(pb_utils, request):
        raise asyncio.CancelledError
    assert request.sender.sent[0][1].startswith("shutting_down")
    assert kinds(request) == ["error", "final"]


def test_only_the_first_end_counts(pb_utils):
    request = Request()
    responder = Responder(pb_utils, request)
    responder.fail(OverloadedError("first"))
    responder.fail(OverloadedError("second"))
    responder.finish()
    assert request.sender.sent == [("error", "overloaded: first"), ("final",)]


def test_knows_whether_the_caller_is_gone(pb_utils):
    request = Request()
    responder = Responder(pb_utils, request)
    assert not responder.cancelled
    request.sender.gone = True
    assert responder.cancelled


@pytest.fixture
def project_logger():
    logger = logging.getLogger("parley")
    before = logger.handlers, logger.level, logger.propagate
    yield logger
    logger.handlers, logger.level, logger.propagate = before


def test_log_records_reach_tritons_log(pb_utils, project_logger):
    pb_utils.Logger.lines = []
    log_to_triton(pb_utils, "qwen3")
    logging.getLogger("parley.llm").warning("slow: %d", 3)
    project_logger.debug("not shown")
    assert pb_utils.Logger.lines == [("warning", "qwen3: slow: 3")]


def test_json_lines_go_to_standard_error_with_the_ids_of_the_request(pb_utils, project_logger, capfd):
    log_to_triton(pb_utils, "qwen3", environment={"PARLEY_LOG_FORMAT": "json"})
    name = make_engine_name("call-7")
    Responder(pb_utils, Request(request_id=f"{name}-llm1")).fail(OverloadedError("full"))
    project_logger.debug("not shown")
    (line,) = capfd.readouterr().err.splitlines()
    line = json.loads(line)
    assert line.pop("ts")
    assert line == {
        "level": "warning",
        "source": "qwen3",
        "logger": "parley.triton.responses",
        "message": f"{name}-llm1: overloaded: full",
        "session": "call-7",
        "request": f"{name}-llm1",
        "code": "overloaded",
    }


def test_the_rest_of_a_line_is_written_where_a_part_was(pb_utils, project_logger, monkeypatch):
    log_to_triton(pb_utils, "qwen3", environment={"PARLEY_LOG_FORMAT": "json"})
    taken = []

    def write(descriptor, line):
        assert descriptor == 2
        taken.append(line[:50])
        return len(taken[-1])

    with monkeypatch.context() as patched:
        patched.setattr("os.write", write)
        project_logger.warning("slow")
    assert len(taken) > 1
    assert json.loads(b"".join(taken))["message"] == "slow"


def test_a_format_that_there_is_not_keeps_the_model_from_loading(pb_utils):
    with pytest.raises(ModelLoadingError, match="PARLEY_LOG_FORMAT is 'xml'"):
        log_to_triton(pb_utils, "qwen3", environment={"PARLEY_LOG_FORMAT": "xml"})


def test_errors_survive_the_wire():
    error = read_failure(wire_text(ContextTooLongError("9000 tokens")))
    assert type(error) is ContextTooLongError
    assert str(error) == "9000 tokens"


def test_unexpected_errors_become_internal():
    error = read_failure(wire_text(KeyError("x")))
    assert type(error) is ParleyError
    assert "KeyError" in str(error)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("in ensemble, overloaded: full", OverloadedError),
        ("Request for unknown model: 'x' is not found", ModelUnavailableError),
        ("Request for unknown model: 'espeak' has no available versions", ModelUnavailableError),
        ("Model x - Error when running inference: Model 'x' is not ready.", ModelUnavailableError),
        ("Stub process 'x_0_0' is not healthy.", ModelUnavailableError),
        ("Failed to obtain the health mutex.", ModelUnavailableError),
        ("tensor X has the wrong shape", InferenceError),
        ("Model nemotron_streaming - Error when running inference: Server not ready", ShuttingDownError),
    ],
)
def test_text_of_triton_is_read_as_the_error_behind_it(text, kind):
    assert type(read_failure(text)) is kind


class Gate:
    """Holds a thread's calls until it is opened."""

    def __init__(self, thread):
        self._opened = threading.Event()
        thread.submit(lambda: self._opened.wait(10))

    def open(self):
        self._opened.set()


@pytest.fixture
def thread():
    thread = ResponseThread("responses", limit=8)
    yield thread
    thread.close(5)


def test_a_thread_sends_while_its_caller_goes_on(pb_utils, thread):
    gate, request = Gate(thread), Request()
    responder = Responder(pb_utils, request, thread=thread)
    assert responder.send(DATA)
    responder.finish()
    assert not responder.send(DATA)
    assert request.sender.sent == []
    gate.open()
    assert request.sender.final.wait(5)
    assert kinds(request) == ["data", "final"]


def test_a_response_that_a_thread_cannot_send_fails_its_request(pb_utils, thread, caplog):
    broken, good = Request(), Request()
    responders = [Responder(pb_utils, request, thread=thread) for request in (broken, good)]
    broken.sender.broken = True
    assert responders[0].send(DATA)
    assert responders[1].send(DATA)
    asyncio.run(thread.result(lambda: None, 5))
    broken.sender.broken = False
    with pytest.raises(RuntimeError, match="cannot send"):
        responders[0].send(DATA)
    for responder in responders:
        responder.finish()
    assert broken.sender.final.wait(5)
    assert good.sender.final.wait(5)
    assert broken.sender.sent == [("error", "internal_error: RuntimeError: cannot send"), ("final",)]
    assert kinds(good) == ["data", "final"]
    assert caplog.text.count("a response could not be sent") == 1


def test_failed_send_ends_the_response(pb_utils, thread):
    gate, request = Gate(thread), Request()
    responder = Responder(pb_utils, request, thread=thread)
    thread.submit(lambda: setattr(request.sender, "broken", True))
    responder.send(DATA)
    thread.submit(lambda: setattr(request.sender, "broken", False))
    responder.send(DATA)
    responder.finish()
    gate.open()
    assert request.sender.final.wait(5)
    assert kinds(request) == ["error", "final"]


def test_a_response_waits_for_room_and_gives_up_in_time(pb_utils):
    thread = ResponseThread("responses", limit=2, patience_s=0.05)
    gate, request = Gate(thread), Request()
    responder = Responder(pb_utils, request, thread=thread)
    assert responder.send(DATA)
    assert responder.send(DATA)
    with pytest.raises(OverloadedError, match="took no response"):
        responder.send(DATA)
    responder.fail(OverloadedError("full"))  # the end of a request finds room always
    gate.open()
    thread.close(5)
    assert kinds(request) == ["data", "data", "error", "final"]


def test_a_response_that_waits_for_room_is_sent_when_there_is_some(pb_utils):
    thread = ResponseThread("responses", limit=1, patience_s=10)
    gate, request = Gate(thread), Request()
    responder = Responder(pb_utils, request, thread=thread)
    responder.send(DATA)
    waiting = threading.Thread(target=responder.send, args=(DATA,))
    waiting.start()
    asked = []
    asking = threading.Thread(target=lambda: asked.append(asyncio.run(responder.is_cancelled())))
    asking.start()  # who waits for room holds nothing that this needs
    gate.open()
    waiting.join(5)
    asking.join(5)
    assert not waiting.is_alive()
    assert asked == [False]
    thread.close(5)
    assert kinds(request) == ["data", "data"]


def test_a_caller_is_not_asked_about_behind_the_end(pb_utils, thread):
    request = Request()
    responder = Responder(pb_utils, request, thread=thread)
    request.sender.gone = True
    assert asyncio.run(responder.is_cancelled())
    responder.finish()
    request.sender.gone = LookupError("freed")
    assert not asyncio.run(responder.is_cancelled())


def test_no_call_is_lost_between_a_submission_and_the_end_of_the_thread():
    for _ in range(200):
        thread = ResponseThread("responses")
        made = threading.Event()
        submitting = threading.Thread(target=thread.submit, args=(made.set,))
        submitting.start()
        thread.close(5)
        submitting.join(5)
        assert made.wait(5)
        assert thread.is_idle


def test_thread_result_follows_waiting_work(thread):
    order = []
    thread.submit(lambda: order.append("before"))

    async def ask():
        assert await thread.result(lambda: order[:], 5) == ["before"]
        with pytest.raises(LookupError):
            await thread.result(lambda: {}["missing"], 5)
        with pytest.raises(TimeoutError):
            await thread.result(lambda: late.wait(0.1), 0.01)
        cancelled = asyncio.ensure_future(thread.result(lambda: gate.wait(5), 5))
        await asyncio.sleep(0)
        cancelled.cancel()
        gate.set()
        assert await thread.result(lambda: "next", 5) == "next"

    gate, late = threading.Event(), threading.Event()
    asyncio.run(ask())


def test_a_closed_thread_has_sent_what_waited(pb_utils, caplog):
    thread, request, late = ResponseThread("responses"), Request(), Request()
    Responder(pb_utils, request, thread=thread).answer(DATA)
    thread.close(5)
    assert kinds(request) == ["data", "final"]
    Responder(pb_utils, late, thread=thread).answer(DATA)
    assert kinds(late) == ["data", "final"]
    assert not caplog.records


def test_a_server_that_takes_no_response_does_not_hold_up_the_end(caplog):
    thread = ResponseThread("responses")
    gate = Gate(thread)
    thread.close(0.01)
    gate.open()
    assert "did not take all responses" in caplog.text

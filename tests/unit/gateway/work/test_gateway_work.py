"""Whatever a client sends, no turn of the gateway's event loop has much work.

The inputs are the largest that the bounds let through, made of the types of all routes and messages; a new
route without an entry fails.
"""

import asyncio
import sys
from itertools import chain

import pytest
from gateway_inputs import HTTP, SIZES, SOCKETS, half_of, heads, messages, routes_of, unread_bodies
from watched_gateway import WatchedGateway
from work_counter import Work, WorkCounter

from parley_gateway.app import create_health_app, create_metrics_app

MOST_LINES = 60_000
"""Lines of Python in one turn: about 10 ms."""
FEW_LINES = 12_000
MOST_GROWTH = 2.6
"""Of the lines from half of an input to the whole of it, where they are not few."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    with WatchedGateway(tmp_path_factory.mktemp("work")) as gateway:
        yield gateway
    assert not gateway.faults.seen, "\n".join(gateway.faults.seen)


def judge(where, work, measure_half):
    """Fail for too much work; ``measure_half`` measures the same with half of the input."""
    assert work.lines <= MOST_LINES, (where, work)
    if work.lines > FEW_LINES:
        half = measure_half()
        assert work.lines <= MOST_GROWTH * max(half.lines, FEW_LINES), (where, work, half)


def test_every_route_has_inputs(watched):
    gateway = watched.gateway
    requests, sockets = routes_of(watched.app)
    for side in (create_health_app, create_metrics_app):
        assert routes_of(side(gateway, gateway.connections))[0] <= requests
    with_body = {(method, path) for method, path in requests if method not in ("GET", "DELETE")}
    assert with_body == set(HTTP)
    assert sockets == set(SOCKETS)


def measure(watched, route, target, request):
    kind = {"Content-Type": request.content_type}
    return watched.work_of_request(route[0], target, request.body, kind | request.headers)


@pytest.mark.parametrize("route", HTTP, ids=" ".join)
async def test_body_of_a_route_is_little_work_per_turn(watched, route):
    make = HTTP[route]
    async with watched.open_session() as session:
        target = route[1].replace("{session_id}", session).replace("{call_id}", "x")

        def drive():
            for size in SIZES:
                for request in make(size):

                    def half(request=request, size=size):
                        same = next(one for one in make(half_of(size)) if one.where == request.where)
                        return measure(watched, route, target, same)

                    judge((size, request.where), measure(watched, route, target, request), half)

        await asyncio.to_thread(drive)


def test_head_and_unread_body_of_a_route_are_little_work_per_turn(watched):
    for method, path in sorted(routes_of(watched.app)[0]):
        for where, target, headers in heads(path.replace("{", "").replace("}", "")):
            work = watched.work_of_request(method, target, None, headers)
            assert work.lines <= MOST_LINES, (method, path, where, work)
        for body in unread_bodies(SIZES[0]):
            work = watched.work_of_request(method, path, body.body)
            assert work.lines <= MOST_LINES, (method, path, body.where, work)


@pytest.mark.parametrize("socket", [*chain(*SOCKETS.values())], ids=lambda socket: socket.target)
async def test_message_to_a_websocket_is_little_work_per_turn(watched, socket):
    for size in SIZES:
        large = {}
        async for where, work in watched.work_of_messages(socket, messages(socket, size)):
            assert work.lines <= MOST_LINES, (size, where, work)
            if work.lines > FEW_LINES:
                large[where] = work
        halves = [(where, message) for where, message in messages(socket, half_of(size)) if where in large]
        async for where, half in watched.work_of_messages(socket, halves):
            judge((size, where), large[where], lambda half=half: half)


# --- what this finds --------------------------------------------------------------------------


def decode_punycode(size):
    """As a form's text was decoded by the charset that the client named."""
    (b"-" + b"b" * size).decode("punycode", "replace")


def segment_again(size):
    """As a text was searched for the ends of its sentences, from its beginning after each."""
    text = "a. " * (size // 3)
    for end in range(0, len(text), 3):
        for _ in range(end // 3):
            pass


def check_each(size):
    """As the tools of a session were checked, one by one."""
    return [len(str(number)) for number in range(size)]


@pytest.mark.parametrize(
    ("handle", "size"), [(decode_punycode, 100_000), (segment_again, 1_500), (check_each, 100_000)]
)
def test_work_of_known_faults_is_found(handle, size):
    def work(size):
        async def turn():
            counter.start()
            await asyncio.sleep(0)
            handle(size)
            await asyncio.sleep(0)

        with WorkCounter().watching() as counter:
            before = sys.gettrace()
            asyncio.run(turn())
            sys.settrace(before)
        return counter.take()

    with pytest.raises(AssertionError):
        judge(handle.__name__, work(size), lambda: work(size // 2))


def test_work_that_grows_with_the_input_only_is_passed():
    judge("linear", Work(2 * FEW_LINES, "f"), lambda: Work(FEW_LINES, "f"))
    with pytest.raises(AssertionError):
        judge("quadratic", Work(4 * FEW_LINES, "f"), lambda: Work(FEW_LINES, "f"))

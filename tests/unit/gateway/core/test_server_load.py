"""Which server takes a call, by what the servers say of themselves."""

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random

import httpx2
import pytest
from listening_gateway import always_ready, fake_servers, until

from parley import protocol
from parley.errors import ModelUnavailableError, TooManySessionsError
from parley_gateway.errors import NoServerReadyError
from parley_gateway.security.principal import ANONYMOUS
from parley_gateway.servers import ServerSettings
from parley_gateway.servers import load as load_module
from parley_gateway.servers import server as server_module
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.load import MetricsReader, ServerReport, read_report

GIB = 2**30
PAGE = f"""\
# TYPE voice_agent_active_sessions gauge
voice_agent_active_sessions{{model_instance="voice_agent_0"}} 5
voice_agent_active_sessions{{model_instance="voice_agent_1"}} 2
# TYPE voice_agent_sessions_limit gauge
voice_agent_sessions_limit{{model_instance="voice_agent_0"}} 16
voice_agent_sessions_limit{{model_instance="voice_agent_1"}} 16
# TYPE voice_agent_draining gauge
voice_agent_draining{{model_instance="voice_agent_0"}} 0
voice_agent_draining{{model_instance="voice_agent_1"}} 0
# TYPE voice_agent_sessions_total counter
voice_agent_sessions_total{{outcome="opened"}} 900
nv_gpu_memory_total_bytes{{gpu_uuid="a"}} {80 * GIB}
nv_gpu_memory_total_bytes{{gpu_uuid="b"}} {80 * GIB}
nv_gpu_memory_used_bytes{{gpu_uuid="a"}} {20 * GIB}
nv_gpu_memory_used_bytes{{gpu_uuid="b"}} {79 * GIB}
"""


class Clock:
    """The event loop's, as far as the servers see it."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    ticks = Clock()
    monkeypatch.setattr(load_module, "loop_time", ticks)
    monkeypatch.setattr(server_module, "loop_time", ticks)
    return ticks


class Pages:
    """What the metrics of servers say; an error in its place is raised."""

    def __init__(self, **reports):
        self.reports = reports
        self.read = Counter()

    async def __call__(self, endpoint):
        name = endpoint.address.partition(":")[0]
        self.read[name] += 1
        report = self.reports[name]
        if isinstance(report, Exception):
            raise report
        return report

    async def read_anew(self):
        """Wait until every page has been read, from now on."""
        before = dict(self.read)
        await until(lambda: all(self.read[name] > before.get(name, 0) + 1 for name in self.reports))


def pool(pages, probe=always_ready, **settings):
    names = tuple(f"{name}:1" for name in pages.reports)
    settings = {
        "addresses": names,
        "load_s": 0.001,
        "slow_start_s": 0.0,
        "metrics_url": "http://{host}",
    } | settings
    return fake_servers(ServerSettings(**settings), probe=probe, read_metrics=pages, random=Random(7))


def place(stack, servers, number=1):
    """Enter so many leases; the names of their servers, counted."""
    return Counter(
        stack.enter_context(servers.lease()).server.address.partition(":")[0] for _ in range(number)
    )


def report(sessions, limit=16, **more):
    return ServerReport(sessions, limit, **more)


# --- the page ---------------------------------------------------------------------------------


def test_the_sessions_of_all_instances_count():
    assert read_report(PAGE) == ServerReport(7, 32, gpu_memory_free=61 * GIB)


def test_instances_that_drain_have_no_places():
    page = PAGE.replace(
        'draining{model_instance="voice_agent_0"} 0', 'draining{model_instance="voice_agent_0"} 1'
    )
    assert read_report(page) == ServerReport(2, 16, gpu_memory_free=61 * GIB)
    page = page.replace(
        'draining{model_instance="voice_agent_1"} 0', 'draining{model_instance="voice_agent_1"} 1'
    )
    assert read_report(page) == ServerReport(0, None, draining=True, gpu_memory_free=61 * GIB)


def test_a_page_without_agent_or_gpu():
    assert read_report("") == ServerReport()
    assert read_report("other 1\n") == ServerReport()
    assert read_report('nv_gpu_memory_total_bytes{gpu_uuid="a"} 5\n') == ServerReport()


@pytest.mark.parametrize(
    "page",
    [
        "voice_agent_draining{ nonsense",
        "voice_agent_active_sessions NaN",
        "voice_agent_active_sessions -1",
        "voice_agent_sessions_limit 1e308",
    ],
)
def test_a_page_that_cannot_be_read_is_an_error(page):
    with pytest.raises(ValueError, match=r"\w"):
        read_report(page)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, PAGE.encode(), ServerReport(7, 32, gpu_memory_free=61 * GIB)),
        (404, PAGE.encode(), httpx2.HTTPError),
        (302, PAGE.encode(), httpx2.HTTPError),
        (200, b"\xff", ValueError),
        (200, b"x" * 5_000_000, ValueError),
    ],
)
async def test_a_page_is_fetched_or_not(status, body, expected):
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

        def handle_one_request(self):
            try:
                super().handle_one_request()
            except ConnectionError:  # the rest of the page is not read
                self.close_connection = True

    reader = MetricsReader(5.0, 4)
    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        endpoint = Endpoint("a:1", f"http://127.0.0.1:{server.server_port}/metrics")
        if isinstance(expected, ServerReport):
            assert await reader.read(endpoint) == expected
        else:
            with pytest.raises(expected):
                await reader.read(endpoint)
        thread.join()
    with pytest.raises(httpx2.HTTPError):
        await reader.read(endpoint)
    await reader.aclose()


# --- which server -----------------------------------------------------------------------------


async def test_sessions_of_other_gateways_count():
    pages = Pages(a=report(10), b=report(6))
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers, 4) == {"b": 4}
            assert place(stack, servers, 2) == {"a": 1, "b": 1}


async def test_a_part_of_the_places_counts_and_not_a_number():
    pages = Pages(a=report(3, limit=4), b=report(20, limit=64))
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers, 4) == {"b": 4}


async def test_sessions_that_a_report_has_are_not_counted_twice(clock):
    pages = Pages(a=report(0), b=report(0))
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers, 2) == {"a": 1, "b": 1}
            pages.reports = {"a": report(1), "b": report(5)}
            clock.now += 60.0
            await pages.read_anew()
            assert [server.sessions for server in servers.all] == [1, 5]
            assert place(stack, servers) == {"a": 1}
            assert [server.sessions for server in servers.all] == [2, 5]


async def test_the_place_of_a_session_that_ended_is_free_at_once(clock):
    pages = Pages(a=report(0))
    async with pool(pages, sessions=1) as servers:
        await pages.read_anew()
        for others in (0, 0, 1):
            with servers.lease():
                clock.now += 60.0
                pages.reports = {"a": report(1 + others, limit=16)}
                await pages.read_anew()
                with pytest.raises(TooManySessionsError):
                    servers.lease()
            assert servers.all[0].sessions == others  # of other gateways
        pages.reports = {"a": report(0)}
        clock.now += 60.0
        await pages.read_anew()
        assert servers.all[0].sessions == 0, "what the page no longer has is not taken from it"
        pages.reports = {"a": report(1)}
        await pages.read_anew()
        assert servers.all[0].sessions == 1


async def test_two_servers_are_drawn_and_the_fuller_of_them_is_not_chosen():
    pages = Pages(**{f"s{number}": report(number) for number in range(8)})
    async with pool(pages) as servers:
        await pages.read_anew()
        chosen = Counter(servers.lease().server.address for _ in range(400))
    assert chosen["s7:1"] == 0
    counts = [chosen[f"s{number}:1"] for number in range(8)]
    assert counts[0] > counts[3] > counts[6] > 0


@pytest.mark.parametrize("error", [OSError("refused"), ValueError("nonsense"), RuntimeError("a bug")])
async def test_without_metrics_the_gateways_own_users_count(error):
    pages = Pages(a=error, b=error)
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers, 6) == {"a": 3, "b": 3}
            assert [server.users for server in servers.all] == [3, 3]


async def test_outdated_load_does_not_count(clock):
    pages = Pages(a=report(15), b=report(0))
    async with pool(pages, load_s=2.0) as servers:
        await until(lambda: servers.all[0].sessions == 15)
        clock.now += 13.0
        assert [(server.sessions, server.limit) for server in servers.all] == [(0, None)] * 2


async def test_full_servers_are_left_out_unless_all_are():
    pages = Pages(a=report(16), b=report(15), c=report(64, limit=64))
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers) == {"b": 1}
            assert sum(place(stack, servers, 3).values()) == 3


async def test_the_limit_of_the_settings_is_kept():
    pages = Pages(a=report(2), b=OSError("refused"))
    async with pool(pages, sessions=4) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers, 6) == {"a": 2, "b": 4}
            with pytest.raises(TooManySessionsError) as refused:
                servers.lease()
            assert refused.value.retryable
            with servers.lease(opens_session=False):
                pass


async def test_a_call_that_has_lost_its_server_may_exceed_the_limit_of_the_settings():
    pages = Pages(a=report(4), b=report(5, limit=5), c=report(3))
    async with pool(pages, sessions=4) as servers:
        await pages.read_anew()
        a, _, c = servers.all
        with ExitStack() as stack:
            assert stack.enter_context(servers.lease(is_rescue=True)).server is c
            assert servers.lease(excluding=[c], is_rescue=True).server is a
            with pytest.raises(TooManySessionsError):
                servers.lease(excluding=[c])


async def test_a_server_that_has_not_written_its_limit_yet_gets_calls():
    pages = Pages(
        a=read_report('voice_agent_sessions_limit{model_instance="voice_agent_0"} 0\n'), b=report(9)
    )
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            assert place(stack, servers, 2) == {"a": 2}


async def test_a_server_that_drains_gets_no_calls():
    pages = Pages(a=report(0), b=report(9))
    async with pool(pages) as servers:
        pages.reports["a"] = ServerReport(0, draining=True)
        await until(lambda: servers.all[0].is_draining)
        assert {servers.lease().server.address for _ in range(4)} == {"b:1"}
        assert servers.all[0].is_answering
        assert servers.all[0].problem == "it takes no new sessions"
        pages.reports["b"] = ServerReport(0, draining=True)
        await until(lambda: not servers.is_ready)
        with pytest.raises(NoServerReadyError):
            servers.lease()


async def test_requests_to_single_models_count_beside_sessions():
    pages = Pages(a=report(0), b=report(0))
    async with pool(pages) as servers:
        await pages.read_anew()
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(servers.lease(opens_session=False))
            assert [server.users for server in servers.all] == [2, 2]
            assert [server.sessions for server in servers.all] == [0, 0]


async def test_a_server_that_has_just_become_ready_gets_fewer_calls(clock):
    loading = {"b:1"}

    async def probe(*_):
        if (
            servers.all
            and servers.all[1].address in loading
            and asyncio.current_task().get_name() == "watch-b:1"
        ):
            raise ModelUnavailableError("loading")

    pages = Pages(a=report(4), b=report(0))
    quick = {"check_s": 0.001, "retry_s": 0.001, "retry_max_s": 0.001}
    servers = pool(pages, probe, slow_start_s=30.0, **quick)
    async with servers:
        first, second = servers.all
        await until(lambda: first.is_ready)
        clock.now += 60.0
        loading.clear()
        await until(lambda: second.is_ready)
        await pages.read_anew()
        # A tenth of 16 places: one call is more than half of them, 4 + 1 of 16 are less.
        assert servers.lease().server is first
        clock.now += 15.0
        await pages.read_anew()
        assert servers.lease().server is second


async def test_a_gateway_shows_the_load_that_it_sees(gateway):
    one = await gateway(servers={"load_s": 0.01})
    one.pool.metrics["server-0:1"] = ServerReport(4, 16)
    await until(lambda: one.gateway.servers.all[0].limit == 16)
    assert await one.metric("parley_gateway_server_load") == 0.25
    one.pool.metrics["server-0:1"] = ServerReport(4, draining=True)
    await until(lambda: one.gateway.servers.all[0].is_draining)
    assert await one.metric("parley_gateway_server_draining") == 1
    assert await one.metric("parley_gateway_server_ready") == 1
    with pytest.raises(NoServerReadyError):
        async with one.gateway.calls.open(protocol.Start(), principal=ANONYMOUS, api="test"):
            pass

"""Which servers there are: names that are resolved again, a file that is read again; and their calls."""

import asyncio
import json
import socket

import pytest
from listening_gateway import FakeChannel, always_ready, fake_servers, until

from parley.errors import ModelUnavailableError
from parley_gateway.errors import GatewaySettingsError, NoServerReadyError
from parley_gateway.servers import ServerSettings, discovery
from parley_gateway.servers.discovery import Endpoint, read_endpoints, resolve_name
from parley_gateway.settings import load_settings

QUICK = {"resolve_s": 0.001, "check_s": 0.001, "retry_s": 0.001, "retry_max_s": 0.001}


class Names:
    """Answers lookups; ``answer`` may be changed, and may be an error."""

    def __init__(self, *addresses):
        self.answer = addresses
        self.asked = 0
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def resolve(self, name, port):
        self.asked += 1
        await self.hangs.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [f"{address}:{port}" for address in self.answer]

    async def looked_up(self):
        """Wait for a lookup that begins from now on, and what becomes of it."""
        asked = self.asked
        await until(lambda: self.asked > asked + 1)


class Channels:
    """Opens channels, and knows which of them are open."""

    def __init__(self):
        self.open = []

    def __call__(self, endpoint):
        channels, channel = self, FakeChannel(endpoint)

        async def close():
            channels.open.remove(endpoint.address)

        channel.close = close
        self.open.append(endpoint.address)
        return channel


def pool(channels=None, probe=always_ready, resolve=resolve_name, **settings):
    settings = ServerSettings(**QUICK | settings)
    return fake_servers(settings, open_channel=channels or FakeChannel, probe=probe, resolve=resolve)


def addresses(servers):
    return [server.address for server in servers.all]


# --- names ------------------------------------------------------------------------------------


async def test_a_name_stands_for_all_its_addresses_and_is_resolved_again():
    names = Names("10.0.0.1", "10.0.0.2")
    async with pool(addresses=("dns://triton:8001", "other:1"), resolve=names.resolve) as servers:
        assert sorted(addresses(servers)) == ["10.0.0.1:8001", "10.0.0.2:8001", "other:1"]
        assert servers.all[1].endpoint.metrics_url == "http://10.0.0.1:8002/metrics"
        names.answer = ("10.0.0.2", "10.0.0.3")
        await until(lambda: "10.0.0.3:8001" in addresses(servers))
        assert sorted(addresses(servers)) == ["10.0.0.2:8001", "10.0.0.3:8001", "other:1"]


@pytest.mark.parametrize(("answer", "problem"), [(OSError("no resolver"), "no resolver"), ((), "no address")])
async def test_found_servers_stay_while_a_name_cannot_be_resolved(caplog, answer, problem):
    names = Names("10.0.0.1")
    async with pool(addresses=("dns://triton:8001",), resolve=names.resolve) as servers:
        names.answer = answer
        await until(lambda: problem in servers.discovery_problems["dns://triton:8001"])
        await names.looked_up()
        assert addresses(servers) == ["10.0.0.1:8001"]
        assert servers.lease().server.address == "10.0.0.1:8001"
        names.answer = ("10.0.0.2",)
        await until(lambda: addresses(servers) == ["10.0.0.2:8001"])
        assert servers.discovery_problems == {"dns://triton:8001": ""}
    warnings = [record.message for record in caplog.records if "cannot be resolved" in record.message]
    assert len(warnings) == 1


async def test_a_lookup_that_hangs_is_not_begun_again():
    names = Names("10.0.0.1")
    names.hangs.clear()
    settings = {"addresses": ("dns://triton:8001",), "resolve_timeout_s": 0.001}
    async with pool(resolve=names.resolve, **settings) as servers:
        assert "no answer within" in servers.discovery_problems["dns://triton:8001"]
        with pytest.raises(NoServerReadyError):
            servers.lease()
        await asyncio.sleep(0.02)
        assert names.asked == 1
        names.hangs.set()
        await until(lambda: addresses(servers) == ["10.0.0.1:8001"])


async def test_servers_beyond_the_limit_are_left_out_and_used_ones_stay(caplog):
    names = Names("10.0.0.5", "10.0.0.6")
    async with pool(addresses=("dns://triton:1",), max_servers=3, resolve=names.resolve) as servers:
        names.answer = tuple(f"10.0.0.{number}" for number in range(1, 9))
        await until(lambda: len(servers.all) == 3)
        await names.looked_up()
        assert {"10.0.0.5:1", "10.0.0.6:1"} < set(addresses(servers))
    assert [record.message for record in caplog.records if "left out" in record.message] == [
        "5 servers are left out: servers.max_servers is 3"
    ]


async def test_the_systems_resolver_answers_for_both_families(monkeypatch):
    def getaddrinfo(name, port, *_, **__):
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert await resolve_name("triton", 8001) == ["10.0.0.7:8001", "[fd00::7]:8001"]


# --- a file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "a:8001\n\n# the other one\nb:2  # new\n",
            [("a:8001", "http://a:8002/metrics"), ("b:2", "")],
        ),
        ('["[fd00::7]:8001"]', [("[fd00::7]:8001", "http://[fd00::7]:8002/metrics")]),
        ('[{"address": "a:1", "metrics": "https://m/{host}"}]', [("a:1", "https://m/a")]),
    ],
)
def test_a_file_names_servers(text, found):
    expected = [Endpoint(address, url) for address, url in found]
    assert read_endpoints(text.encode(), ServerSettings()) == expected


@pytest.mark.parametrize(
    ("form", "url"), [(None, ""), ("", ""), ("https://{host}:8443/metrics", "https://a:8443/metrics")]
)
def test_the_settings_say_where_metrics_are(form, url):
    assert read_endpoints(b"a:1", ServerSettings(metrics_url=form)) == [Endpoint("a:1", url)]


def test_a_file_has_a_limit_for_each_server():
    text = '["a:1", {"address": "b:1", "sessions": 4}]'
    found = read_endpoints(text.encode(), ServerSettings(sessions=12))
    assert [one.sessions for one in found] == [12, 4]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none\n",
        "[]",
        "a",
        "a:0",
        "dns://a:1",
        "http://a:1",
        '["a:1", 5]',
        '[{"adress": "a:1"}]',
        "[" * 9,
        "\xff",
    ],
)
def test_invalid_list_of_servers_is_refused(text):
    with pytest.raises(GatewaySettingsError, match=r"not a list of servers|names no server"):
        read_endpoints(text.encode("latin-1"), ServerSettings())


async def test_a_file_is_read_again_when_it_is_replaced(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(discovery, "_FILE_S", 0.001)
    first, second, file = tmp_path / "..1", tmp_path / "..2", tmp_path / "servers"
    first.write_text("a:1\nb:1\n")
    second.write_text('["b:1", "c:1"]')
    file.symlink_to(first)  # as Kubernetes mounts a ConfigMap
    async with pool(file=str(file)) as servers:
        assert addresses(servers) == ["a:1", "b:1"]
        kept = servers.all[1]
        (tmp_path / "..new").symlink_to(second)
        (tmp_path / "..new").replace(file)
        await until(lambda: addresses(servers) == ["b:1", "c:1"])
        assert servers.all[0] is kept
        second.write_text("[")
        await until(lambda: servers.discovery_problems[str(file)])
        file.unlink()
        await until(lambda: "No such file" in servers.discovery_problems[str(file)])
        assert addresses(servers) == ["b:1", "c:1"]
        file.write_text("d:1")
        await until(lambda: addresses(servers) == ["d:1"])
        assert not servers.discovery_problems[str(file)]
    assert sum("keeping what was read before" in record.message for record in caplog.records) == 2


def test_a_file_that_cannot_be_used_is_an_error_at_the_start(tmp_path):
    with pytest.raises(GatewaySettingsError, match="cannot be read"):
        pool(file=str(tmp_path / "none"))


@pytest.mark.parametrize("address", ["a", "a:b", ":1", "dns://a", "dns://a:0", "http://a:1"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(GatewaySettingsError, match="host:port"):
        load_settings(flags={"servers": {"addresses": [address]}})


def test_servers_are_limited():
    assert ServerSettings(addresses=("a:1", "b:1")).max_connected == 2
    assert ServerSettings(addresses=("dns://a:1",), max_servers=7).max_connected == 7
    assert ServerSettings(file="servers", max_servers=7).max_connected == 7


def test_variables_name_servers_and_the_place_of_each_url_of_metrics():
    settings = load_settings(
        environment={
            "PARLEY_GATEWAY_SERVERS_ADDRESSES": "[fd00::1]:8001, b:1 ,c:8001,",
            "PARLEY_GATEWAY_SERVERS_METRICS": ",http://b:2/metrics,",
        }
    ).servers
    assert settings.addresses == ("[fd00::1]:8001", "b:1", "c:8001")
    assert settings.metrics == ("", "http://b:2/metrics", "")
    found = discovery.Discovery(settings, lambda: None).endpoints
    assert [one.metrics_url for one in found] == [
        "http://[fd00::1]:8002/metrics",
        "http://b:2/metrics",
        "http://c:8002/metrics",
    ]
    listed = load_settings(environment={"PARLEY_GATEWAY_SERVERS_ADDRESSES": ' ["a:1","b:1"]'}).servers
    assert listed.addresses == ("a:1", "b:1")
    assert load_settings(environment={"PARLEY_GATEWAY_SERVERS_METRICS": ""}).servers.metrics == ()


async def test_the_dot_of_a_fully_qualified_name_is_not_in_the_certificate():
    names = Names("10.0.0.1")
    async with pool(addresses=("dns://triton.example.:1",), resolve=names.resolve) as servers:
        assert [one.endpoint.name for one in servers.all] == ["triton.example"]


# --- what becomes of a server that vanishes ---------------------------------------------------


async def test_a_server_that_vanishes_is_closed_when_its_last_call_has_ended():
    names, channels = Names("a", "b"), Channels()
    async with pool(channels, addresses=("dns://x:1",), resolve=names.resolve) as servers:
        with servers.lease(excluding=[servers.all[1]]), servers.lease(excluding=[servers.all[1]]) as lease:
            assert lease.server.address == "a:1"
            names.answer = ("b",)
            await until(lambda: addresses(servers) == ["b:1"])
            assert [(one.address, one.users) for one in servers.removed] == [("a:1", 2)]
            assert {servers.lease().server.address for _ in range(3)} == {"b:1"}
            assert sorted(channels.open) == ["a:1", "b:1"]
        await until(lambda: channels.open == ["b:1"])
        assert servers.removed == ()
    assert channels.open == []


async def test_a_server_that_comes_back_is_used_again():
    names, channels = Names("a", "b"), Channels()
    async with pool(channels, addresses=("dns://x:1",), resolve=names.resolve) as servers:
        with servers.lease(excluding=[servers.all[1]]) as lease:
            names.answer = ("b",)
            await until(lambda: servers.removed)
            names.answer = ("a", "b")
            await until(lambda: not servers.removed)
            assert lease.server in servers.all
        assert sorted(channels.open) == ["a:1", "b:1"]
        names.answer = ("b",)
        await until(lambda: channels.open == ["b:1"])
        names.answer = ("a", "b")
        await until(lambda: sorted(channels.open) == ["a:1", "b:1"])
        await until(lambda: all(server.is_ready for server in servers.all))


async def test_a_server_that_is_new_takes_calls_when_it_is_ready():
    names, loading = Names("a"), {"b:1"}

    async def probe(channel, _):
        if channel.address in loading:
            raise ModelUnavailableError("loading")

    async with pool(probe=probe, addresses=("dns://x:1",), resolve=names.resolve) as servers:
        names.answer = ("a", "b")
        await until(lambda: len(servers.all) == 2 and servers.all[1].checked.is_set())
        assert {servers.lease().server.address for _ in range(3)} == {"a:1"}
        loading.clear()
        await until(lambda: servers.all[1].is_ready)
        assert {servers.lease().server.address for _ in range(3)} == {"a:1", "b:1"}


async def test_an_entry_that_changes_keeps_its_server(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_FILE_S", 0.001)
    file = tmp_path / "servers.json"
    file.write_text('["a:1"]')
    async with pool(file=str(file)) as servers:
        (server,) = servers.all
        file.write_text(json.dumps([{"address": "a:1", "sessions": 3}]))
        await until(lambda: server.endpoint.sessions == 3)
        assert servers.all == (server,)


async def test_the_series_of_a_server_that_has_left_are_removed(gateway, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_FILE_S", 0.001)
    file = tmp_path / "servers"
    file.write_text("server-0:1")
    one = await gateway(servers={"file": str(file)})
    series = 'parley_gateway_server_ready{server="server-0:1"} 1.0'
    assert series in (await one.http.get("/metrics")).text
    file.write_text("server-9:1")
    await until(lambda: [server.address for server in one.gateway.servers.all] == ["server-9:1"])
    page = (await one.http.get("/metrics")).text
    assert "server-0:1" not in page
    assert f'parley_gateway_discovery_failing{{source="{file}"}} 0.0' in page


async def test_without_any_server_the_reason_names_where_they_are_sought(gateway, monkeypatch):
    known = socket.getaddrinfo

    def getaddrinfo(name, *more, **options):
        if name == "triton":
            raise socket.gaierror("no such name")
        return known(name, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    one = await gateway(servers={"addresses": ["dns://triton:1"]})
    answer = (await one.http.get("/readyz")).json()
    assert answer["reason"] == "no_server"
    assert answer["error"]["message"] == "no server is found by dns://triton:1"
    assert await one.metric("parley_gateway_discovery_failing") == 1

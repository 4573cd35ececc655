"""A server that demands certificates of its clients; its models and its supervisor have one too."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading

import httpx
import pytest
from certificates import Authority
from gateway_caller import TOOLS, ask_for_the_weather, call
from leftovers import AGENT_MODELS, ANY_PORTS, leftovers

from parley.launcher import EmbeddedServer, ServerOptions, ServerTls
from parley.launcher.restarts import SupervisorLimits
from parley.protocol import ResponseText, TurnMetrics
from parley_client import NO_RETRY, TlsOptions, connect
from parley_client.cli.program import main
from parley_client.errors import NoGrpcError, TlsError
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

NAME = "triton.example"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def files(tmp_path_factory, authority):
    """Files of the authority, the server and a client."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "ca.pem").write_bytes(authority.certificate)
    for name in (NAME, "client"):
        certificate, key = authority.issue(name)
        (folder / f"{name}.pem").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
    return folder


class Progress:
    """What the launcher reports."""

    def __init__(self):
        self._lines = []
        self._changed = threading.Condition()

    def add(self, line):
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def wait_for(self, words):
        """Until a line begins so, or the server is lost."""

        def find():
            return any(line.startswith(words) or "server is started again" in line for line in self._lines)

        with self._changed:
            assert self._changed.wait_for(find, DEADLINE_S), self._lines
            assert any(line.startswith(words) for line in self._lines), self._lines


@pytest.fixture(scope="module")
def progress():
    return Progress()


@pytest.fixture(scope="module")
def server(tmp_path_factory, files, progress):
    options = ServerOptions(
        load_models=AGENT_MODELS,
        state_dir=tmp_path_factory.mktemp("server"),
        exit_timeout_s=8,
        tls=ServerTls(
            cert_file=files / f"{NAME}.pem", key_file=files / f"{NAME}.key", client_ca_file=files / "ca.pem"
        ),
        environment={"PARLEY_VOICE_AGENT_ASR": "nemotron_streaming"},
        **ANY_PORTS,
    )
    # The supervisor asks often, so that a canary of its own is among what is tested.
    limits = SupervisorLimits(quiet_s=2.0)
    with EmbeddedServer(options, limits=limits, on_progress=progress.add) as running_one:
        session = running_one.pid
        yield running_one
    assert leftovers(session, running_one.shm_prefix) == ([], [])


@pytest.fixture
def tls(files):
    return TlsOptions(
        ca_file=files / "ca.pem",
        server_name=NAME,
        cert_file=files / "client.pem",
        key_file=files / "client.key",
    )


async def ask_for_a_story(address, tls):
    """A typed turn, whose text and speech both come by streams between the models."""
    said, spoken = [], 0
    async with asyncio.timeout(DEADLINE_S), connect(address, tls=tls, greeting="", retry=NO_RETRY) as one:
        one.send_text("tell me a story")
        async for event in one:
            if isinstance(event, ResponseText):
                said.append(event.text)
            elif isinstance(event, TurnMetrics):
                break
            else:
                spoken += len(getattr(event, "samples", ()))
    return "".join(said), spoken


async def test_a_call_with_a_certificate(server, tls):
    text, spoken = await ask_for_a_story(server.endpoints.grpc, tls)
    assert len(text) > 20
    assert spoken > 22_050


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cert_file": None, "key_file": None}, NoGrpcError),
        ({"server_name": "other.example"}, TlsError),
        (None, NoGrpcError),
    ],
)
async def test_a_call_without_one_is_refused(server, tls, changes, error):
    given = None
    if changes is not None:
        known = {name: getattr(tls, name) for name in ("ca_file", "server_name", "cert_file", "key_file")}
        given = TlsOptions(**known | changes)
    with pytest.raises(error):
        await ask_for_a_story(server.endpoints.grpc, given)


async def test_a_call_through_the_gateway(server, tls):
    names = ("ca_file", "server_name", "cert_file", "key_file")
    servers = {
        "addresses": [server.endpoints.grpc],
        "metrics_url": f"http://{server.endpoints.metrics}/metrics",
        "tls": {name: str(getattr(tls, name)) for name in names},
    }
    settings = load_settings(flags={"listen": {"port": 0}, "servers": servers})
    async with running(settings) as one, call(one.url, tools=TOOLS, greeting="") as caller:
        await ask_for_the_weather(caller)


async def test_health_and_metrics_are_there_and_nothing_else_is_without_tls(server):
    async with httpx.AsyncClient(timeout=30, base_url=f"http://{server.endpoints.http}") as http:
        assert (await http.get("/v2/health/ready")).status_code == 200
        for path in ("/v2", "/v2/models/espeak/config", "/v2/models/stats", "/v2/models/espeak/infer"):
            answer = await (http.post(path, json={}) if path.endswith("infer") else http.get(path))
            assert (answer.status_code, "restricted" in answer.text) == (403, True), path
        page = (await http.get(f"http://{server.endpoints.metrics}/metrics")).text
    assert "voice_agent_sessions_limit{" in page


def test_the_command_asks_every_model(server, files, capsys, monkeypatch):
    given = ["--ca", files / "ca.pem", "--cert", files / "client.pem", "--key", files / "client.key"]
    probe = ["probe", "--json", "--server", server.endpoints.grpc]
    assert main([*probe, *map(str, given), "--server-name", NAME]) == 0
    assert {one["model"] for one in json.loads(capsys.readouterr().out)["models"]} == set(AGENT_MODELS)
    assert main([*probe, *map(str, given[:2])]) == 1
    assert "another name" in capsys.readouterr().out
    for name, value in (("CA", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")):
        monkeypatch.setenv(f"PARLEY_GRPC_{name}_FILE", str(files / value))
    monkeypatch.setenv("PARLEY_GRPC_SERVER_NAME", NAME)
    assert main(probe) == 0


async def test_a_model_that_dies_is_loaded_again(server, tls, files, progress):
    # Renewed files are those of the next server: this one and its models keep theirs.
    certificate, key = Authority("another").issue(NAME)
    (files / f"{NAME}.pem").write_bytes(certificate)
    (files / f"{NAME}.key").write_bytes(key)
    (stub,) = [usage for usage in server.usage() if usage.name.startswith("espeak")]
    agent = next(usage for usage in server.usage() if usage.name.startswith("voice_agent"))
    os.kill(stub.pid, signal.SIGKILL)
    os.kill(agent.pid, signal.SIGKILL)
    for model in ("espeak", "voice_agent"):
        await asyncio.to_thread(progress.wait_for, f"{model} answers again")
    text, spoken = await ask_for_a_story(server.endpoints.grpc, tls)
    assert len(text) > 20
    assert spoken > 22_050

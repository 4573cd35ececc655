"""The compose file's secrets, and what it starts on a GPU."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tomllib

import pytest
import yaml
from charts import ROOT, render
from observe import find_program
from test_settings import run_in_project
from value_sets import SETS

COMPOSE = ROOT / "deploy" / "compose"


def prepare(folder, **environment):
    """Run the program that makes the secrets."""
    given = {
        "PARLEY": str(ROOT / ".venv" / "bin" / "parley"),
        "PARLEY_SECRETS": str(folder),
        "PARLEY_AGENTS": str(folder.with_name("agents")),
        **environment,
    }
    return subprocess.run(
        [COMPOSE / "prepare"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    done = prepare(folder)
    assert done.returncode == 0, done.stderr
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def folder(made, tmp_path):
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_every_secret_is_made_once_and_only_its_owner_enters(made, folder):
    wanted = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["secrets"]
    assert {one["file"].removeprefix("secrets/") for one in wanted.values()} <= set(made)
    assert prepare(folder).returncode == 0
    assert contents(folder) == made
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folder_of_agents_is_made_where_the_worker_mounts_it(made, folder):
    assert prepare(folder, PARLEY_AGENTS=str(folder / "agents")).returncode == 0
    assert (folder / "agents").is_dir()
    volumes = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["worker"]["volumes"]
    assert "${PARLEY_AGENTS:-./agents}:/opt/parley/agents:ro" in volumes
    assert "${PARLEY_CALLS:-calls}:/var/lib/parley/calls" in volumes


def test_alertmanager_accepts_its_configuration_and_prometheus_sends_to_it(made, tmp_path):
    file = tmp_path / "alertmanager.yaml"
    file.write_bytes(made["alertmanager.yaml"])
    command = [find_program("amtool"), "check-config", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    service = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["alertmanager"]
    assert "--config.file=/run/secrets/alertmanager.yaml" in service["command"]
    (target,) = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["alerting"]["alertmanagers"]
    assert target["static_configs"] == [{"targets": ["alertmanager:9093"]}]


@pytest.mark.parametrize("name", ["token_secret", "grafana_password"])
def test_a_secret_that_is_lost_is_made_again_and_no_other(made, folder, name):
    (folder / name).unlink()
    assert prepare(folder).returncode == 0
    assert {other for other, content in contents(folder).items() if content != made[other]} == {name}


@pytest.mark.parametrize("name", ["redis.conf", "gateway.toml"])
def test_a_file_that_is_lost_gets_the_password_of_the_other_one(made, folder, name):
    (folder / name).unlink()
    assert prepare(folder).returncode == 0
    assert contents(folder) == made


@pytest.mark.parametrize("name", ["api_key", "metrics_key"])
def test_a_key_that_is_lost_gets_a_successor_and_the_others_go_on(made, folder, name):
    inode = (folder / "keys.toml").stat().st_ino
    (folder / name).unlink()
    assert prepare(folder).returncode == 0
    now = contents(folder)
    assert {other for other, content in now.items() if content != made[other]} == {name, "keys.toml"}
    before, after = (tomllib.loads(files["keys.toml"].decode()) for files in (made, now))
    assert before.items() < after.items()
    assert len(after) == 3
    assert (folder / "keys.toml").stat().st_ino == inode, "a mounted file is its inode"


@pytest.mark.parametrize(("name", "others"), [("tls.key", "tls.crt"), ("keys.toml", "api_key")])
def test_prepare_that_fails_replaces_no_file(made, folder, name, others):
    (folder / name).unlink()
    done = prepare(folder)
    assert done.returncode == 1
    assert others in done.stderr
    assert contents(folder) == {file: content for file, content in made.items() if file != name}


def test_failure_to_make_a_key_is_reported(folder):
    (folder / "api_key").unlink()
    done = prepare(folder, PARLEY="/bin/ls")
    assert done.returncode == 1
    assert "ls:" in done.stderr
    assert not (folder / "api_key").exists()


_MEET = """
import asyncio, json, os, sys
from pathlib import Path
from parley.launcher.__main__ import parser, read_options
from parley.tls import read_tls
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.tls import ServerTls
from parley_gateway.settings import load_settings
given = json.load(sys.stdin)
worker = read_options(parser().parse_args(given["command"])).tls
# Both usages, and the name of its own.
assert worker.own_options().server_name == "worker"
probe = read_tls(given["worker"])
probe.credentials()
assert probe.server_name == "worker"
settings = load_settings(environment=given["gateway"]).servers
assert settings.addresses == ("worker:8001",)
ServerTls(settings.tls)
"""


def test_worker_and_gateway_may_demand_certificates_of_each_other(made, folder):
    usual = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    found = yaml.safe_load((COMPOSE / "compose.tls.yaml").read_text())
    done = subprocess.run(
        [COMPOSE / "prepare_tls"],
        env={**os.environ, "PARLEY_SECRETS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    wanted = {one["file"].removeprefix("secrets/") for one in found["secrets"].values()}
    assert set(contents(folder)) == set(made) | wanted
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in wanted} == {0o644}
    for service in found["services"].values():
        named = json.dumps([service.get("command"), service["environment"]])
        assert {name for name in wanted if f"/{name}" in named} == set(service["secrets"])
    for one, issuer in (("worker.crt", "worker_ca.crt"), ("gateway.crt", "worker_ca.crt")):
        command = ["openssl", "verify", "-CAfile", folder / issuer, folder / one]
        subprocess.run(command, check=True, capture_output=True)
    worker, gateway = (found["services"][name] for name in ("worker", "gateway"))
    address = usual["gateway"]["environment"]["PARLEY_GATEWAY_SERVERS_ADDRESSES"]
    given = {
        "command": [part.replace("${PARLEY_PROFILE:-open}", "open") for part in worker["command"]],
        "worker": worker["environment"],
        "gateway": {**gateway["environment"], "PARLEY_GATEWAY_SERVERS_ADDRESSES": address},
    }
    run_in_project(_MEET, json.loads(json.dumps(given).replace("/run/secrets", str(folder))))


def test_a_start_on_a_gpu_has_the_launchers_own_limit():
    program = "from parley.launcher.options import GPU_READY_TIMEOUT_S; print(f'{GPU_READY_TIMEOUT_S:.0f}')"
    limit_s = run_in_project(program, {}).strip()
    flag = f"--ready-timeout={limit_s}"
    services = yaml.safe_load((COMPOSE / "compose.gpu.yaml").read_text())["services"]
    assert flag in services["worker"]["command"]
    assert flag in render(SETS["single-gpu"]).container("worker")["args"]
    # Only after it a failed check makes the container unhealthy, for which the gateway waits.
    image = (ROOT / "build" / "images" / "worker-gpu.Containerfile").read_text()
    assert f"--start-period={limit_s}s" in image
    assert "--ready-timeout=900" in render(SETS["cpu"]).container("worker")["args"]

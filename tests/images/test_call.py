"""A call through the containers, with the secrets, the settings and the nginx of the compose file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
from conftest import COMPOSE, TOOLS
from containers import ROOT, Container

CLIP = ROOT / "tests/data/conversation"
HTTPS = "8443"
NGINX_USER = 101
AS_NGINX = (
    "setpriv",
    f"--reuid={NGINX_USER}",
    f"--regid={NGINX_USER}",
    "--clear-groups",
    "nginx",
    "-e",
    "stderr",
)
PLACE = "/run/secrets/"
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def gateway(worker, network, secrets, tmp_path_factory):
    """A gateway with the environment of the compose file, in front of the worker, beside a Redis."""
    variables = {"PARLEY_PUBLIC_URL": f"https://localhost:{HTTPS}", "PARLEY_FRONT_SUBNET": "127.0.0.0/8"}
    shown = subprocess.run(
        [TOOLS / "docker-compose", "config", "--format", "json"],
        cwd=COMPOSE,
        env={**os.environ, **variables},
        capture_output=True,
        check=True,
    )
    service = json.loads(shown.stdout)["services"]["gateway"]
    mounts = [(secrets / one["source"], PLACE + one["source"]) for one in service["secrets"]]
    redis = subprocess.Popen(
        network.command("redis-server", secrets / "redis.conf"), stdout=subprocess.DEVNULL
    )
    container = Container(
        "gateway",
        network,
        tmp_path_factory.mktemp("gateway"),
        environment=service["environment"],
        mounts=mounts,
        tmpfs=("/tmp", "/var/cache/parley"),  # noqa: S108 - in the container
    )
    try:
        with container:
            container.wait_for("ready http=")
            yield container
    finally:
        redis.terminate()
        redis.wait(30)


@pytest.fixture(scope="module")
def nginx(gateway, network, secrets, tmp_path_factory):
    """Debian's nginx with the configuration of the compose file, as a user who is not root."""
    folder = tmp_path_factory.mktemp("nginx")
    text = (COMPOSE / "nginx/nginx.conf").read_text()
    assert text.count(PLACE) == 2
    log = folder / "access.log"
    text = text.replace("/tmp/", f"{folder}/").replace(PLACE, f"{folder}/")  # noqa: S108 - replaced
    config = folder / "nginx.conf"
    config.write_text(text.replace("/dev/stdout", str(log)))
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes((secrets / name).read_bytes())
    for path in (*folder.iterdir(), *[folder, *folder.parents][:3]):
        path.chmod(0o755)
    os.chown(folder, NGINX_USER, NGINX_USER)
    program = (*AS_NGINX, "-c", config)
    network.run(*program, "-t")
    process = subprocess.Popen(network.command(*program, "-g", "daemon off;"))
    try:
        yield log
    finally:
        process.send_signal(subprocess.signal.SIGQUIT)
        process.wait(30)


def environment(secrets):
    return {
        **os.environ,
        "PARLEY_URL": f"https://localhost:{HTTPS}",
        "PARLEY_KEY": (secrets / "api_key").read_text(),
        "SSL_CERT_FILE": str(secrets / "tls.crt"),
    }


def test_both_containers_are_healthy(worker, gateway):
    status, said = worker.is_healthy()
    assert status == 0, said
    assert json.loads(said)["ok"] is True
    status, said = gateway.is_healthy()
    assert status == 0, said


def test_a_call_goes_through_tls_gateway_and_worker(nginx, network, secrets, tmp_path):
    clip = next(CLIP.glob("*-weather.wav"))
    said = network.run(
        sys.executable, ROOT / "examples/gateway_stream.py", clip, env=environment(secrets), cwd=tmp_path
    )
    assert "you: " in said
    assert "Paris" in said.partition("agent:")[2]
    assert (tmp_path / "answer.wav").stat().st_size > 44_000
    lines = [json.loads(line) for line in nginx.read_text().splitlines()]
    assert {line["path"].split("/")[2] for line in lines} == {"sessions"}
    assert all("?" not in line["path"] for line in lines)


def test_only_tls_1_3_is_spoken(nginx, network):
    command = ("openssl", "s_client", "-connect", f"localhost:{HTTPS}", "-brief")
    spoken = subprocess.run(network.command(*command), input="", capture_output=True, text=True, check=False)
    assert "TLSv1.3" in spoken.stderr
    refused = subprocess.run(
        network.command(*command, "-tls1_2"), input="", capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0


def answered(network, secrets, path, key):
    """The status of a request that goes through nginx."""
    ask = (
        "import httpx, sys\n"
        f"url = 'https://localhost:{HTTPS}/' + sys.argv[1]\n"
        "print(httpx.get(url, headers={'Authorization': f'Bearer {sys.argv[2]}'}).status_code)"
    )
    return int(network.run(sys.executable, "-c", ask, path, key, env=environment(secrets)))


@pytest.mark.parametrize("path", ["metrics", "ready", "health"])
def test_operations_are_not_public(nginx, network, path, secrets):
    assert answered(network, secrets, path, (secrets / "metrics_key").read_text()) == 404


@pytest.mark.parametrize("path", ["", "readyz", "v1/agent", "v1/audio/voices"])
def test_requests_of_the_page_before_a_call_are_answered(nginx, network, path, secrets):
    assert answered(network, secrets, path, (secrets / "api_key").read_text()) == 200


def test_a_key_that_is_made_in_the_container_counts_without_a_restart(nginx, gateway, network, secrets):
    status, said = gateway.execute("parley", "gateway", "keys", "new", "--name", "kiosk")
    assert status == 0, said
    (key,) = re.findall(r"parley_\w+_[\w-]+", said)
    assert answered(network, secrets, "v1/agent", key) == 401
    with (secrets / "keys.toml").open("a") as keys:
        keys.write("".join(f"{line}\n" for line in said.splitlines() if "sha256" in line))
    end = time.monotonic() + LIMIT_S
    while answered(network, secrets, "v1/agent", key) != 200:
        assert time.monotonic() < end


def test_a_renewed_certificate_counts_after_a_reload(nginx, network, secrets, tmp_path):
    """It is the last test that speaks TLS: clients do not trust the new certificate."""
    place, renewed = nginx.parent, tmp_path / "tls.crt"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1")
    network.run("openssl", "req", "-x509", "-key", place / "tls.key", *names, "-out", renewed)
    # In place, as the file is mounted.
    (place / "tls.crt").write_bytes(renewed.read_bytes())
    network.run(*AS_NGINX, "-c", place / "nginx.conf", "-s", "reload")
    show = f"openssl s_client -connect localhost:{HTTPS} < /dev/null 2> /dev/null | openssl x509"
    end = time.monotonic() + LIMIT_S
    while network.run("sh", "-c", show).split() != renewed.read_text().split():
        assert time.monotonic() < end


def test_prometheus_key_opens_the_metrics_and_the_other_one_does_not(gateway, network, secrets):
    ask = (
        "import httpx, sys\n"
        "for key in sys.argv[1:]:\n"
        "    header = {'Authorization': f'Bearer {open(key).read()}'}\n"
        "    print(httpx.get('http://gateway:8081/metrics', headers=header).status_code)"
    )
    said = network.run(sys.executable, "-c", ask, secrets / "metrics_key", secrets / "api_key")
    assert said.split() == ["200", "403"]


def test_the_image_of_the_weights_knows_what_a_profile_lacks(images, network, tmp_path):
    container = Container(
        "weights",
        network,
        tmp_path,
        tmpfs=("/tmp", "/var/cache/parley", "/var/lib/parley/models"),  # noqa: S108 - in the container
        arguments=("--profile", "open", "--status", "--json"),
    )
    with container:
        assert container.wait() == 1
    states = [json.loads(line) for line in container.log.read_text().splitlines() if line.startswith("{")]
    there = {state["name"] for state in states if state["there"]}
    assert "moonshine-tiny-en" in {state["name"] for state in states} - there
    assert there >= {"silero-vad", "smart-turn-v3.2"}  # come with packages


def test_a_signal_ends_both_in_time(gateway, worker):
    """The last test of this file: its containers are gone."""
    assert gateway.stop(within_s=30.0) == 0
    assert worker.stop(within_s=40.0) == 0

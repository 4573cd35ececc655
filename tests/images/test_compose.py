"""The compose file, as the real docker-compose reads it, and the files beside it."""

from __future__ import annotations

import json
import stat
import subprocess

import pytest
import yaml
from conftest import COMPOSE, TOOLS
from observe import find_program

FILES = [("compose.yaml",), ("compose.yaml", "compose.gpu.yaml"), ("compose.yaml", "compose.tls.yaml")]
OPEN = {"nginx", "grafana"}
"""Services that the host reaches."""


@pytest.fixture(scope="module", params=FILES, ids=["cpu", "gpu", "tls"])
def compose(request):
    command = [TOOLS / "docker-compose", *(part for file in request.param for part in ("-f", file))]
    done = subprocess.run(
        [*command, "config", "--format", "json"], cwd=COMPOSE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def seconds(text):
    minutes, _, rest = text.rpartition("m")
    return 60 * int(minutes or 0) + int(rest.removesuffix("s") or 0)


def test_every_service_is_hardened_and_limited(compose):
    for name, service in compose["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service, name
        assert set(service["deploy"]["resources"]["limits"]) >= {"cpus", "memory"}, name


def test_the_host_reaches_nginx_and_on_its_loopback_grafana(compose):
    services = compose["services"]
    assert {name for name in services if services[name].get("ports")} == OPEN
    assert [port.get("host_ip") for port in services["grafana"]["ports"]] == ["127.0.0.1"]
    assert compose["networks"]["back"]["internal"]
    for name in ("worker", "redis"):
        assert set(services[name]["networks"]) == {"back"}, name


def test_calls_have_the_time_that_they_are_promised(compose):
    services = compose["services"]
    drain = int(services["gateway"]["environment"]["PARLEY_GATEWAY_LISTEN_DRAIN_S"])
    assert seconds(services["gateway"]["stop_grace_period"]) > drain
    text = (COMPOSE / "nginx/nginx.conf").read_text()
    assert f"worker_shutdown_timeout {drain}s;" in text
    assert seconds(services["nginx"]["stop_grace_period"]) >= drain
    assert services["nginx"]["stop_signal"] == "SIGQUIT"


def test_nginx_reads_its_configuration_where_a_reload_finds_it(compose):
    nginx = compose["services"]["nginx"]
    assert "/etc/nginx/nginx.conf" in {one["target"] for one in nginx["volumes"]}
    assert "-c" not in nginx["entrypoint"]


def test_services_wait_for_healthy_dependencies(compose):
    services = compose["services"]
    waits = {name: service.get("depends_on", {}) for name, service in services.items()}
    assert waits["worker"]["weights"]["condition"] == "service_completed_successfully"
    assert {name: one["condition"] for name, one in waits["gateway"].items()} == {
        "worker": "service_healthy",
        "redis": "service_healthy",
    }
    own = {"worker", "gateway", "weights"}  # the images have their checks, and weights ends
    assert all("healthcheck" in services[name] for name in services if name not in own)


def test_prepare_makes_every_secret_once_and_keeps_other_users_out(compose, secrets):
    wanted = {one["file"].rpartition("/")[2] for one in compose["secrets"].values()}
    assert wanted <= {path.name for path in secrets.iterdir()}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    # Each is read by a container with a user of its own.
    assert all(stat.S_IMODE((secrets / name).stat().st_mode) == 0o644 for name in wanted)
    before = {path: path.read_bytes() for path in secrets.iterdir()}
    subprocess.run(
        [COMPOSE / "prepare"], env={"PATH": "/usr/bin:/bin", "PARLEY_SECRETS": str(secrets)}, check=True
    )
    assert {path: path.read_bytes() for path in secrets.iterdir()} == before


def test_prepare_refuses_what_is_no_host_name(tmp_path):
    done = subprocess.run(
        [COMPOSE / "prepare", "a/b c"],
        env={"PATH": "/usr/bin:/bin", "PARLEY_SECRETS": str(tmp_path / "secrets")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "error: a/b c is no host name\n")
    assert not (tmp_path / "secrets").exists()


def test_prometheus_accepts_its_configuration(compose, tmp_path):
    text = (COMPOSE / "prometheus.yaml").read_text()
    mounts = {one["target"]: one["source"] for one in compose["services"]["prometheus"]["volumes"]}
    rules = "/etc/prometheus/rules/alerts.yaml"
    (tmp_path / "key").write_text("k")
    text = text.replace(rules, mounts[rules]).replace("/run/secrets/metrics_key", str(tmp_path / "key"))
    config = tmp_path / "prometheus.yaml"
    config.write_text(text)
    done = subprocess.run(
        [find_program("promtool"), "check", "config", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = yaml.safe_load(text)["scrape_configs"]
    # The alerts and dashboards know the jobs by these names.
    assert [job["job_name"] for job in jobs] == ["parley", "parley-gateway"]


def test_grafana_finds_the_dashboards_and_prometheus(compose):
    mounts = {one["target"]: one["source"] for one in compose["services"]["grafana"]["volumes"]}
    providers = yaml.safe_load((COMPOSE / "grafana/dashboards.yaml").read_text())["providers"]
    boards = mounts[providers[0]["options"]["path"]]
    assert boards == str(COMPOSE.parent / "grafana")
    source = yaml.safe_load((COMPOSE / "grafana/sources.yaml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")

"""A pod that ends keeps its calls: the steps of its end fit into its grace."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from charts import ROOT, merge, render
from value_sets import SETS


def option(command, name):
    (found,) = [part.partition("=")[2] for part in command if part.startswith(f"--{name}=")]
    return found


@pytest.mark.parametrize("name", SETS)
def test_the_grace_of_a_gateway_covers_its_drain(name):
    rendered = render(SETS[name])
    before = rendered.container("gateway")["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = tomllib.loads(rendered.gateway_toml())["listen"]["drain_s"]
    assert rendered.pod("gateway")["terminationGracePeriodSeconds"] >= before + drain + 10 + 15


@pytest.mark.parametrize("name", SETS)
def test_the_grace_of_a_worker_covers_its_drain(name):
    rendered = render(SETS[name])
    container = rendered.container("worker")
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["parley", "drain"]
    assert "--absent-ok" in command
    wait, moving = int(option(command, "wait")), int(option(command, "deadline"))
    assert moving <= wait
    assert rendered.pod("worker")["terminationGracePeriodSeconds"] >= wait + 20 + 15
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert option(command, "file") == environment["PARLEY_DRAIN_FILE"]


def test_the_file_of_the_drain_can_be_written_and_outlives_the_container():
    rendered = render(SETS["cpu"])
    (folder,) = [
        mount
        for mount in rendered.container("worker")["volumeMounts"]
        if mount["mountPath"] == "/var/lib/parley/server"
    ]
    assert not folder.get("readOnly")


def test_the_end_of_the_server_has_the_time_that_the_grace_counts():
    rendered = render(merge(SETS["cpu"], {"worker": {"exitSeconds": 45}}))
    assert "--exit-timeout=45" in rendered.container("worker")["args"]
    assert rendered.pod("worker")["terminationGracePeriodSeconds"] == 1800 + 45 + 15
    rendered = render(merge(SETS["single-gpu"], {"worker": {"exitSeconds": 45}}))
    assert "--exit-timeout=45" in rendered.container("worker")["args"]


def test_a_longer_grace_than_needed_is_taken():
    assert render(SETS["short-calls"]).pod("gateway")["terminationGracePeriodSeconds"] == 400


def test_balancers_keep_the_connections_of_a_pod_that_ends():
    annotations = render(SETS["eks-production"]).get("Service", "-gateway")["metadata"]["annotations"]
    attributes = annotations["service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"]
    assert "deregistration_delay.timeout_seconds=1800" in attributes
    assert "deregistration_delay.connection_termination.enabled=false" in attributes
    assert "target_health_state.unhealthy.connection_termination.enabled=false" in attributes
    assert "stickiness.enabled=false" in attributes, "there is a listener for TLS"


@pytest.mark.parametrize(
    ("name", "before_s", "ready_s"), [("eks-production", 60, 60), ("ingress-alb", 60, 60), ("cpu", 15, None)]
)
def test_balancers_have_the_time_to_learn_of_pods_that_come_and_go(name, before_s, ready_s):
    rendered = render(SETS[name])
    assert rendered.container("gateway")["lifecycle"]["preStop"] == {"sleep": {"seconds": before_s}}
    assert rendered.get("Deployment", "-gateway")["spec"].get("minReadySeconds") == ready_s


def test_a_pod_that_drains_is_still_scraped():
    monitors = render(SETS["eks-production"]).of_kind("PodMonitor")
    assert {one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in monitors} == {
        "gateway",
        "worker",
    }


@pytest.mark.parametrize(
    ("name", "given", "limit_s"), [("cpu", 1000, 1000), ("cpu", None, 900), ("single-gpu", None, 1920)]
)
def test_the_first_start_of_a_worker_may_take_as_long_as_it_is_given(name, given, limit_s):
    rendered = render(merge(SETS[name], {"worker": {"startupSeconds": given}}))
    probe = rendered.container("worker")["startupProbe"]
    # The launcher ends first, and says why.
    assert f"--ready-timeout={limit_s}" in rendered.container("worker")["args"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > limit_s
    assert probe["exec"]["command"][:2] == ["parley", "probe"]
    assert rendered.get("Deployment", "-worker")["spec"]["progressDeadlineSeconds"] > limit_s


@pytest.mark.parametrize(("name", "is_v6"), [("cpu", False), ("ipv6", True), ("gpu-ipv6", True)])
def test_probe_and_drain_ask_at_an_address_that_the_server_listens_on(name, is_v6):
    container = render(SETS[name]).container("worker")
    probe = container["startupProbe"]["exec"]["command"]
    drain = container["lifecycle"]["preStop"]["exec"]["command"]
    assert ("--server=[::1]:8001" in probe) == is_v6
    assert ("--metrics=[::1]:8002" in drain) == is_v6


@pytest.mark.parametrize("name", ["cpu", "single-gpu"])
def test_readiness_depends_neither_on_the_load_nor_on_other_pods(name):
    gateway, worker = (render(SETS[name]).container(component) for component in ("gateway", "worker"))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert gateway[probe]["httpGet"]["path"] == "/healthz"
    assert worker["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert {port["name"]: port["containerPort"] for port in worker["ports"]} == {
        "grpc": 8001,
        "metrics": 8002,
    }


@pytest.mark.parametrize("name", SETS)
def test_a_worker_is_repaired_by_its_launcher_which_ends_where_that_fails(name):
    worker = render(SETS[name]).container("worker")
    assert "livenessProbe" not in worker
    image = "gpu" if "gpu" in worker["image"] else "cpu"
    text = (ROOT / "build" / "images" / f"worker-{image}.Containerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (\[[^]]*\])", text, re.MULTILINE)
    program = json.loads(entry.replace("\\\n", ""))
    assert program[:5] == ["tini", "--", "python", "-m", "parley.launcher"]
    assert "--no-restart" not in [*program, *worker.get("args", [])]

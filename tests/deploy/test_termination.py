"""A pod that ends keeps its calls: the steps of its end fit into its grace."""

from __future__ import annotations

import tomllib

import pytest
from charts import merge, render
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
    assert "--exit-timeout-secs=45" in rendered.container("worker")["args"]


def test_a_longer_grace_than_needed_is_taken():
    assert render(SETS["short-calls"]).pod("gateway")["terminationGracePeriodSeconds"] == 400


def test_balancers_keep_the_connections_of_a_pod_that_ends():
    annotations = render(SETS["eks-production"]).get("Service", "-gateway")["metadata"]["annotations"]
    attributes = annotations["service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"]
    assert "deregistration_delay.timeout_seconds=1800" in attributes
    assert "connection_termination.enabled=false" in attributes


def test_a_pod_that_drains_is_still_scraped():
    monitors = render(SETS["eks-production"]).of_kind("PodMonitor")
    assert {one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in monitors} == {
        "gateway",
        "worker",
    }


def test_the_first_start_of_a_worker_may_take_as_long_as_it_is_given():
    rendered = render(merge(SETS["cpu"], {"worker": {"startupSeconds": 1000}}))
    probe = rendered.container("worker")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1000
    assert probe["exec"]["command"][:2] == ["parley", "probe"]
    assert rendered.get("Deployment", "-worker")["spec"]["progressDeadlineSeconds"] > 1000


@pytest.mark.parametrize(("name", "is_v6"), [("cpu", False), ("ipv6", True), ("gpu-ipv6", True)])
def test_probe_and_drain_ask_at_an_address_that_the_server_listens_on(name, is_v6):
    container = render(SETS[name]).container("worker")
    probe = container["startupProbe"]["exec"]["command"]
    drain = container["lifecycle"]["preStop"]["exec"]["command"]
    assert ("--server=[::1]:8001" in probe) == is_v6
    assert ("--metrics=[::1]:8002" in drain) == is_v6


def test_readiness_does_not_depend_on_the_load():
    rendered = render(SETS["cpu"])
    assert rendered.container("gateway")["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert rendered.container("worker")["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert rendered.container("gateway")["livenessProbe"]["httpGet"]["path"] == "/healthz"

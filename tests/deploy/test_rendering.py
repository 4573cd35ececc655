"""Every set of values becomes objects that a cluster accepts, and that keep to the policies."""

from __future__ import annotations

import re

import helm_python
import pytest
from charts import CHART, NAMESPACE, RELEASE, render
from policies import violations
from schemas import VERSIONS, custom_errors, is_built_in, kubernetes_errors
from value_sets import SECRET, SETS, from_files

_THOROUGH = ("minimal", "eks-production", "webrtc-turn")
"""Checked against every version of Kubernetes; the others against the oldest and the newest."""


@pytest.fixture(params=SETS)
def rendered(request):
    return render(SETS[request.param])


def test_there_are_sets_for_every_way_of_use():
    assert len(SETS) >= 30
    kinds = {found["kind"] for values in SETS.values() for found in render(values).objects}
    assert {
        "ScaledObject",
        "HorizontalPodAutoscaler",
        "ExternalSecret",
        "HTTPRoute",
        "TLSRoute",
        "Ingress",
    } <= kinds


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_accepts_the_objects(name):
    versions = VERSIONS if name in _THOROUGH else (VERSIONS[0], VERSIONS[-1])
    built_in = [found for found in render(SETS[name]).objects if is_built_in(found)]
    assert [
        error for found in built_in for version in versions for error in kubernetes_errors(found, version)
    ] == []


def test_operators_accept_their_custom_resources():
    every = [found for values in SETS.values() for found in render(values).objects if not is_built_in(found)]
    assert every
    assert custom_errors(every) == []


def test_a_misspelled_field_of_a_custom_resource_is_found():
    (found,) = render(SETS["eks-production"]).of_kind("ScaledObject")
    wrong = {**found, "spec": {**found["spec"], "minReplicas": 1}}
    assert custom_errors([wrong]) == [
        f"ScaledObject {RELEASE}-parley-worker: unknown field /spec/minReplicas"
    ]


@pytest.mark.parametrize("name", from_files())
def test_helm_finds_nothing_to_complain_about(name):
    report = helm_python.lint(CHART, SETS[name], strict=True, namespace=NAMESPACE)
    worse = [message for message in report["messages"] if message["severity"] > 1]
    assert (report["errors"], worse) == ([], [])


def test_pods_keep_to_the_policies(rendered):
    assert [text for workload in rendered.of_kind("Deployment") for text in violations(workload)] == []


def test_the_policies_notice_what_they_are_for():
    workload = render(SETS["cpu"]).get("Deployment", "-worker")
    pod = workload["spec"]["template"]["spec"]
    container = {**pod["containers"][0], "image": "worker", "securityContext": {}, "resources": {}}
    bad = {
        **pod,
        "securityContext": {},
        "hostNetwork": True,
        "containers": [container],
        "volumes": [{"name": "x", "hostPath": {}}],
    }
    found = violations({**workload, "spec": {"template": {"spec": bad}}})
    assert len(found) > 8
    assert not violations(workload)


def test_no_object_is_there_twice(rendered):
    names = [(found["kind"], found["metadata"]["name"]) for found in rendered.objects]
    assert len(names) == len(set(names))


def test_names_fit_and_labels_are_complete(rendered):
    for found in rendered.objects:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", found["metadata"]["name"])
        assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


def test_services_and_policies_select_pods_of_this_release_only(rendered):
    pods = [one["spec"]["template"]["metadata"]["labels"].items() for one in rendered.of_kind("Deployment")]
    for found in rendered.objects:
        spec = found.get("spec", {})
        match found["kind"]:
            case "Service":
                selector = spec["selector"]
            case "PodMonitor":
                selector = spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"]
            case _:
                continue
        selected = sum(selector.items() <= labels for labels in pods)
        is_default = found["metadata"]["name"].endswith("default-deny")
        assert selected == (len(pods) if is_default else 1), found["metadata"]["name"]


def test_replicas_are_set_only_where_nothing_scales(rendered):
    scaled = {
        found["spec"]["scaleTargetRef"]["name"]
        for found in rendered.objects
        if "scaleTargetRef" in found.get("spec", {})
    }
    targets = [
        found["spec"]["scaleTargetRef"]["name"]
        for found in rendered.objects
        if "scaleTargetRef" in found.get("spec", {})
    ]
    assert len(targets) == len(scaled)
    for workload in rendered.of_kind("Deployment"):
        assert ("replicas" in workload["spec"]) == (workload["metadata"]["name"] not in scaled)


def test_ports_that_are_named_exist(rendered):
    by_component = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: {
            port["name"]
            for container in one["spec"]["template"]["spec"]["containers"]
            for port in container.get("ports", [])
        }
        for one in rendered.of_kind("Deployment")
    }
    for service in rendered.of_kind("Service"):
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= by_component[component]
    for workload in rendered.of_kind("Deployment"):
        for container in workload["spec"]["template"]["spec"]["containers"]:
            probes = [container[name] for name in container if name.endswith("Probe")]
            used = {p.get("httpGet", p.get("tcpSocket", {})).get("port") for p in probes} - {None}
            assert used <= by_component[workload["metadata"]["labels"]["app.kubernetes.io/component"]]


def test_nothing_but_named_traffic_is_admitted():
    cluster = render(SETS["eks-production"])
    deny = cluster.get("NetworkPolicy", "-default-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    worker = cluster.get("NetworkPolicy", "-worker")["spec"]
    first, second = worker["ingress"]
    (gateway,) = first["from"]
    assert gateway["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert [port["port"] for port in second["ports"]] == ["metrics"]
    for rule in worker["egress"]:
        for peer in rule["to"]:
            block = peer.get("ipBlock", {})
            assert block.get("cidr") != "0.0.0.0/0" or block["except"] == ["169.254.0.0/16"]


@pytest.mark.parametrize("name", ["spare-nodes", "spare-processors"])
def test_a_spare_node_is_one_that_a_worker_fits_on_and_gives_way_to_it(name):
    rendered = render(SETS[name])
    spare, worker = rendered.pod("spare"), rendered.pod("worker")
    for field in ("nodeSelector", "tolerations"):
        assert spare.get(field) == worker.get(field)
    assert rendered.container("spare")["resources"] == rendered.container("worker")["resources"]
    assert rendered.container("spare")["image"] == rendered.container("worker")["image"]
    (priority,) = rendered.of_kind("PriorityClass")
    assert spare["priorityClassName"] == priority["metadata"]["name"]
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"


def test_a_chart_version_alone_replaces_no_pod():
    workload = render(SETS["cpu"]).get("Deployment", "-worker")
    assert "helm.sh/chart" not in workload["spec"]["template"]["metadata"]["labels"]


def test_notes_say_what_to_expect():
    assert "kubectl" in render(SETS["cpu"]).notes
    assert "has not been run on a GPU" in render(SETS["single-gpu"]).notes
    assert "no network policies" in render(SETS["no-policies"]).notes
    assert "https://voice.example.com/" in render(SETS["ingress-nginx"]).notes
    assert "common" not in render({**SECRET, "gateway": {"replicas": 1}}).notes

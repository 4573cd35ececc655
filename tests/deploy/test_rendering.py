"""Every set of values becomes objects that a cluster accepts, and that keep to the policies."""

from __future__ import annotations

import copy
import ipaddress
import re

import helm_python
import pytest
from charts import CHART, NAMESPACE, RELEASE, merge, render
from policies import violations
from schemas import VERSIONS, custom_errors, is_built_in, kubernetes_errors
from value_sets import NEEDED, SETS, from_files

_THOROUGH = ("minimal", "eks-production", "webrtc-turn")
"""Checked against every version of Kubernetes; the others against the oldest and the newest."""


@pytest.fixture(params=SETS)
def rendered(request):
    return render(SETS[request.param])


def test_sets_of_values_cover_every_use():
    assert len(SETS) >= 30
    assert f"with {len(SETS)} sets of values" in (CHART / "README.md").read_text()
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
    found = render(SETS["eks-production"]).get("ScaledObject", "-worker")
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


def changed(**changes):
    """The pod of a worker, with fields set by paths such as ``pod__hostNetwork``; None: removed."""
    workload = copy.deepcopy(render(SETS["cpu"]).get("Deployment", "-worker"))
    template = workload["spec"]["template"]
    places = {
        "template": template,
        "pod": template["spec"],
        "security": template["spec"]["securityContext"],
        "worker": template["spec"]["containers"][0],
        "hardening": template["spec"]["containers"][0]["securityContext"],
        "limits": template["spec"]["containers"][0]["resources"]["limits"],
        "requests": template["spec"]["initContainers"][0]["resources"]["requests"],
        "startup": template["spec"]["containers"][0]["startupProbe"],
    }
    for path, value in changes.items():
        place, _, name = path.partition("__")
        if value is None:
            del places[place][name]
        else:
            places[place][name] = value
    return workload


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"security__runAsNonRoot": False}, "may run as root"),
        ({"security__runAsUser": 0}, "may run as root"),
        ({"security__seccompProfile": {"type": "Unconfined"}}, "has no seccomp profile"),
        ({"pod__automountServiceAccountToken": None}, "gets a token of its account"),
        ({"pod__hostNetwork": True}, "shares hostNetwork with the node"),
        ({"pod__terminationGracePeriodSeconds": None}, "has no grace period of its own"),
        ({"template__metadata": {}}, "may be moved by Karpenter, which ends its calls"),
        ({"pod__volumes": [{"name": "x", "hostPath": {}}]}, "has a volume of the kind hostPath"),
        ({"pod__volumes": [{"name": "x", "emptyDir": {}}]}, "has a volume without a limit: x"),
        ({"pod__volumes": []}, "worker mounts what there is not: shm"),
        ({"hardening__allowPrivilegeEscalation": None}, "worker may gain privileges"),
        ({"hardening__privileged": True}, "worker is privileged"),
        ({"hardening__readOnlyRootFilesystem": None}, "worker may write its image"),
        ({"hardening__capabilities": {}}, "worker has capabilities"),
        ({"hardening__capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, "worker has capabilities"),
        ({"limits__memory": None}, "worker has no memory in limits"),
        ({"requests__cpu": None}, "fetch-weights has no cpu in requests"),
        ({"limits__cpu": "2"}, "worker is throttled, which is heard as gaps"),
        ({"worker__image": "a.b:5000/w"}, "worker has an image without a version: a.b:5000/w"),
        ({"worker__image": "worker:latest"}, "worker has an image without a version: worker:latest"),
        (
            {"worker__env": [{"name": "MY_SECRET", "value": "x"}]},
            "worker has the secret MY_SECRET in its spec",
        ),
        ({"worker__lifecycle": None}, "worker lacks lifecycle"),
        (
            {"startup__terminationGracePeriodSeconds": None},
            "worker waits for calls after a failed startupProbe",
        ),
    ],
)
def test_every_policy_notices_what_it_is_for(changes, said):
    assert f"calls-parley-worker: {said}" in violations(changed(**changes))


def test_a_capability_for_ports_and_an_image_by_digest_are_accepted():
    capabilities = {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    digest = f"a.example:5000/worker@sha256:{'0' * 64}"
    assert violations(changed(hardening__capabilities=capabilities, worker__image=digest)) == []


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


def policies_of(rendered):
    return {
        one["metadata"]["name"].removeprefix(rendered.prefix + "-"): one["spec"]
        for one in rendered.of_kind("NetworkPolicy")
    }


def components(rule, direction):
    """The components and namespaces that a rule names; None: everything."""
    if direction not in rule:
        return None
    labels = [one.get("podSelector", one.get("namespaceSelector", {})) for one in rule[direction]]
    return {value for one in labels for value in one.get("matchLabels", {}).values()} & {
        *("gateway", "worker", "turn", "monitoring", "prometheus")
    }


@pytest.mark.parametrize("name", set(SETS) - {"no-policies"})
def test_network_policy_admits_named_traffic_only(name):
    rendered = render(SETS[name])
    found = policies_of(rendered)
    deny, worker, gateway = (found[part] for part in ("default-deny", "worker", "gateway"))
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert {port["port"] for rule in deny["egress"] for port in rule["ports"]} == {53}
    assert [components(rule, "from") for rule in worker["ingress"]] in (
        [{"gateway"}, {"monitoring"}],
        [{"gateway"}, {"prometheus"}],
    )
    for rule in gateway["ingress"]:
        if any(port["port"] == "metrics" for port in rule["ports"]):
            assert components(rule, "from") <= {"monitoring", "prometheus"}
        elif any(port["protocol"] == "UDP" for port in rule["ports"]) and "turn" in found:
            assert components(rule, "from") == {"turn"}
    if "turn" in found:
        assert [components(rule, "to") for rule in found["turn"]["egress"]] == [{"gateway"}]


@pytest.mark.parametrize("name", set(SETS) - {"no-policies"})
def test_worker_with_weights_from_the_internet_reaches_no_neighbour(name):
    values = SETS[name]
    worker = policies_of(render(values))["worker"]
    given = values.get("networkPolicy", {}).get("workerEgress", [])
    own = [rule for rule in worker.get("egress", []) if rule not in given]
    assert bool(own) == (values.get("weights", {}).get("source", "hub") in ("hub", "s3"))
    for rule in own:
        for peer in rule["to"]:
            block = peer["ipBlock"]
            if block["cidr"] == "169.254.170.23/32":  # EKS Pod Identity
                assert rule["ports"] == [{"protocol": "TCP", "port": 80}]
                continue
            assert rule["ports"] == [{"protocol": "TCP", "port": 443}]
            for neighbour in ("10.0.1.2", "172.20.0.1", "169.254.169.254", "100.64.0.1", "fd00:ec2::254"):
                network, address = ipaddress.ip_network(block["cidr"]), ipaddress.ip_address(neighbour)
                excepted = [ipaddress.ip_network(one) for one in block["except"]]
                assert all(one.version == network.version for one in excepted)
                assert address not in network or any(address in one for one in excepted), neighbour


def test_without_policies_there_are_none():
    assert policies_of(render(SETS["no-policies"])) == {}


def test_pods_with_calls_are_evicted_one_at_a_time(rendered):
    budgets = rendered.of_kind("PodDisruptionBudget")
    selected = {one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in budgets}
    with_calls = {
        one["metadata"]["labels"]["app.kubernetes.io/component"] for one in rendered.of_kind("Deployment")
    } - {"overprovisioning"}
    assert selected in (with_calls, set())
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("internal-nlb", {"nlb": {"annotations": {"%shealthcheck-path": "/readyz"}}}, "Service"),
        ("ingress-nginx", {"ingress": {"annotations": {"%sproxy-body-size": "1m"}}}, "Ingress"),
        ("ingress-alb", {"ingress": {"annotations": {"%sscheme": "internal"}}}, "Ingress"),
    ],
)
def test_an_annotation_of_the_chart_can_be_replaced(name, values, kind):
    prefix = {
        "internal-nlb": "service.beta.kubernetes.io/aws-load-balancer-",
        "ingress-nginx": "nginx.ingress.kubernetes.io/",
        "ingress-alb": "alb.ingress.kubernetes.io/",
    }[name]
    ((part, given),) = values.items()
    ((suffix, value),) = given["annotations"].items()
    annotation = suffix % prefix
    changed = merge(SETS[name], {"exposure": {part: {"annotations": {annotation: value}}}})
    before = render(SETS[name]).get(kind, "-gateway")["metadata"]["annotations"]
    after = render(changed).get(kind, "-gateway")["metadata"]["annotations"]
    assert after == before | {annotation: value}
    assert before[annotation] != value
    pod = render(merge(SETS["cpu"], {"worker": {"podAnnotations": {"karpenter.sh/do-not-disrupt": "false"}}}))
    template = pod.get("Deployment", "-worker")["spec"]["template"]
    assert template["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "false"}


@pytest.mark.parametrize("name", ["overprovisioned-gpus", "overprovisioned-processors"])
def test_a_node_that_is_kept_ready_is_one_for_a_worker_and_gives_way_to_it(name):
    rendered = render(SETS[name])
    idle, worker = rendered.pod("overprovisioning"), rendered.pod("worker")
    for field in ("nodeSelector", "tolerations"):
        assert idle.get(field) == worker.get(field)
    assert rendered.container("overprovisioning")["resources"] == rendered.container("worker")["resources"]
    assert rendered.container("overprovisioning")["image"] == rendered.container("worker")["image"]
    (priority,) = rendered.of_kind("PriorityClass")
    assert idle["priorityClassName"] == priority["metadata"]["name"]
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
    assert "common" not in render({**NEEDED, "gateway": {"replicas": 1}}).notes

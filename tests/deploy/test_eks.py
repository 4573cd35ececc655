"""The files for EKS fit together, and the chart renders with their values."""

from __future__ import annotations

import json
import re
import tomllib

import helm_python
import pytest
import yaml
from charts import CHART, NAMESPACE, ROOT, merge, read_documents, render
from policies import violations
from schemas import VERSIONS, custom_errors, is_built_in, kubernetes_errors

EKS = ROOT / "deploy" / "eks"
ACCOUNT = "111122223333"
(CLUSTER,) = read_documents((EKS / "cluster.yaml").read_text())
NODES = read_documents((EKS / "nodes.yaml").read_text())
(VALUES,) = read_documents((EKS / "values.yaml").read_text())
COMMAND_LINE = {"imageRegistry": "registry.example.com", "weights": {"checksums": f"{'0' * 64}  a/b\n"}}
"""What README.md adds on the command line."""


class CloudFormationLoader(yaml.SafeLoader):
    """Reads the short forms of functions, such as !Sub, as their arguments."""


def _plain(loader, _suffix, node):
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    return loader.construct_sequence(node)


CloudFormationLoader.add_multi_constructor("!", _plain)
BUCKET = yaml.load((EKS / "bucket.yaml").read_text(), CloudFormationLoader)  # noqa: S506 - of SafeLoader


(WITHOUT_GPU,) = read_documents((EKS / "values-cpu.yaml").read_text())


@pytest.fixture(scope="module")
def rendered():
    return render(merge(VALUES, COMMAND_LINE))


def pools():
    return {one["metadata"]["name"]: one["spec"] for one in NODES if one["kind"] == "NodePool"}


def requirements(pool):
    return {one["key"]: one for one in pool["template"]["spec"]["requirements"]}


@pytest.mark.parametrize("values", [merge(VALUES, COMMAND_LINE), merge(VALUES, WITHOUT_GPU)])
def test_the_chart_becomes_what_the_cluster_accepts(values):
    rendered = render(values)
    objects = rendered.objects
    version = CLUSTER["metadata"]["version"]
    assert version in VERSIONS
    assert [e for one in objects if is_built_in(one) for e in kubernetes_errors(one, version)] == []
    assert custom_errors([one for one in objects if not is_built_in(one)]) == []
    assert [text for one in rendered.of_kind("Deployment") for text in violations(one)] == []


def test_karpenter_and_external_secrets_accept_their_resources():
    (store,) = read_documents((EKS / "secret-store.yaml").read_text())
    assert custom_errors([*NODES, store]) == []


def test_nodes_with_calls_are_neither_reclaimed_nor_cut_short():
    for pool in pools().values():
        assert requirements(pool)["karpenter.sh/capacity-type"]["values"] == ["on-demand"]
        assert pool["disruption"]["consolidationPolicy"] == "WhenEmpty"
        spec = pool["template"]["spec"]
        assert spec["expireAfter"] == "Never"
        assert "terminationGracePeriod" not in spec


def test_nodes_without_a_gpu_have_whole_processors():
    wanted = requirements(pools()["voice-cpu"])
    assert wanted["karpenter.k8s.aws/instance-category"]["values"] == ["c", "m"]
    assert wanted["karpenter.k8s.aws/instance-capability-flex"]["values"] == ["false"]
    # The label came with Karpenter 1.7.
    assert tuple(map(int, CLUSTER["karpenter"]["version"].split(".")))[:2] >= (1, 7)


def test_every_pod_finds_a_node(rendered):
    gpu, cpu = pools()["voice-gpu"], pools()["voice-cpu"]
    worker, gateway = rendered.pod("worker"), rendered.pod("gateway")
    (name,) = [worker["nodeSelector"]["karpenter.k8s.aws/instance-gpu-name"]]
    assert name in requirements(gpu)["karpenter.k8s.aws/instance-gpu-name"]["values"]
    tolerated = {one["key"] for one in worker["tolerations"]}
    assert {taint["key"] for taint in gpu["template"]["spec"]["taints"]} <= tolerated
    assert gateway["nodeSelector"].items() <= cpu["template"]["metadata"]["labels"].items()
    assert "taints" not in cpu["template"]["spec"]


def test_without_a_gpu_every_pod_finds_a_node_too():
    worker = render(merge(VALUES, WITHOUT_GPU)).pod("worker")
    cpu = pools()["voice-cpu"]["template"]
    assert worker["nodeSelector"].items() <= cpu["metadata"]["labels"].items()
    assert "nvidia.com/gpu" not in worker["containers"][0]["resources"]["limits"]


def test_the_pods_that_bring_weights_may_read_the_bucket(rendered):
    associations = {
        (one["namespace"], one["serviceAccountName"]): one
        for one in CLUSTER["iam"]["podIdentityAssociations"]
    }
    (account,) = rendered.of_kind("ServiceAccount")
    reader = associations[NAMESPACE, account["metadata"]["name"]]
    granted = {
        action: one["Resource"] for one in reader["permissionPolicy"]["Statement"] for action in one["Action"]
    }
    bucket = BUCKET["Resources"]["Weights"]["Properties"]["BucketName"].replace("${AWS::AccountId}", ACCOUNT)
    assert VALUES["weights"]["s3"]["uri"].startswith(f"s3://{bucket}/")
    voices = VALUES["worker"]["voices"]["uri"]
    assert voices.startswith(f"s3://{bucket}/")
    kept = f"arn:aws:s3:::{voices.removeprefix('s3://')}/*"
    assert granted == {
        "s3:ListBucket": f"arn:aws:s3:::{bucket}",
        "s3:GetObject": f"arn:aws:s3:::{bucket}/*",
        "s3:PutObject": kept,
        "s3:DeleteObject": kept,
    }
    assert not VALUES["weights"]["s3"]["uri"].startswith(voices)
    statements = BUCKET["Resources"]["Policy"]["Properties"]["PolicyDocument"]["Statement"]
    (reads,) = [one for one in statements if one["Sid"] == "TheClusterReads"]
    assert (reads["Effect"], reads["NotResource"]) == ("Deny", "${Weights.Arn}/" + kept.partition("/")[2])
    assert reader["roleName"] in (EKS / "bucket.yaml").read_text()
    assert any(one["name"] == "eks-pod-identity-agent" for one in CLUSTER["addons"])


def test_the_bucket_is_neither_public_nor_read_without_tls():
    properties = BUCKET["Resources"]["Weights"]["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    statements = BUCKET["Resources"]["Policy"]["Properties"]["PolicyDocument"]["Statement"]
    (tls,) = [one for one in statements if one["Sid"] == "OnlyTls"]
    assert (tls["Effect"], tls["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


def test_network_policies_have_an_effect():
    (plugin,) = [one for one in CLUSTER["addons"] if one["name"] == "vpc-cni"]
    assert yaml.safe_load(plugin["configurationValues"]) == {"enableNetworkPolicy": "true"}


def test_names_are_the_same_in_all_files():
    name, region = CLUSTER["metadata"]["name"], CLUSTER["metadata"]["region"]
    (node_class,) = [one["spec"] for one in NODES if one["kind"] == "EC2NodeClass"]
    assert node_class["role"] == f"eksctl-KarpenterNodeRole-{name}"
    assert node_class["subnetSelectorTerms"][0]["tags"].items() >= CLUSTER["metadata"]["tags"].items()
    for file in EKS.glob("*.yaml"):
        assert set(re.findall(r"\b[a-z]{2}-(?:central|east|west)-\d\b", file.read_text())) <= {region}
        assert set(re.findall(r"\b\d{12}\b", file.read_text())) <= {ACCOUNT}
    assert VALUES["secrets"]["externalSecret"]["store"] in (EKS / "secret-store.yaml").read_text()


@pytest.mark.parametrize(
    ("values", "number"), [(merge(VALUES, COMMAND_LINE), 0), (merge(VALUES, WITHOUT_GPU, COMMAND_LINE), 1)]
)
def test_every_image_is_built_and_pushed_by_the_readme(values, number):
    readme = (EKS / "README.md").read_text()
    pushed = re.findall(r'^IMAGES="(.+)"$', readme, re.MULTILINE)[number].split()
    prefix = COMMAND_LINE["imageRegistry"] + "/"
    pods = [one["spec"]["template"]["spec"] for one in render(values).of_kind("Deployment")]
    used = {
        container["image"].removeprefix(prefix)
        for pod in pods
        for container in (*pod.get("initContainers", ()), *pod["containers"])
    }
    assert used == set(pushed)
    version = f"--tag {yaml.safe_load((CHART / 'Chart.yaml').read_text())['appVersion']}"
    assert f'images ARGS="{version}"' in readme
    assert ("worker-gpu" in str(pushed)) == (number == 0)
    assert f'IMAGE=worker-gpu ARGS="{version} --triton-image' in readme


def commands():
    """The values of each command of the README that installs or changes the release, in their order."""
    readme = (EKS / "README.md").read_text().replace("\\\n", " ")
    for line in re.findall(r"^helm (?:install|upgrade) calls .*$", readme, re.MULTILINE):
        values = [read_documents((EKS / name).read_text())[0] for name in re.findall(r"--values (\S+)", line)]
        values += [COMMAND_LINE] if "SHA256SUMS" in line else []
        for path, text in re.findall(r"--set ([\w.]+)=(\S+)", line):
            value = {"$REGISTRY": "registry.example.com", "$(jq": 31.5}.get(text, text)
            for name in reversed(path.split(".")):
                value = {name: int(value) if str(value).isdigit() else value}
            values.append(value)
        yield merge(*values)


def test_every_command_of_the_readme_is_accepted_by_the_chart():
    with_gpu, one_worker, measured, without, _ = commands()
    assert render(with_gpu).of_kind("ScaledObject")
    changed = render(merge(with_gpu, one_worker)).get("ScaledObject", "-worker")["spec"]
    assert (changed["minReplicaCount"], changed["maxReplicaCount"]) == (1, 1)
    after = render(merge(with_gpu, one_worker, measured)).get("ScaledObject", "-worker")["spec"]
    assert after["triggers"][0]["metadata"]["threshold"] == "22"
    before = render(with_gpu).get("ScaledObject", "-worker")["spec"]
    assert {name: after[name] for name in ("minReplicaCount", "maxReplicaCount", "fallback")} == {
        name: before[name] for name in ("minReplicaCount", "maxReplicaCount", "fallback")
    }
    assert render(without).container("worker")["image"].endswith("/parley/worker-cpu:0.2.0")


def test_a_worker_without_a_gpu_is_measured_up_to_all_its_sessions():
    *_, without, one_worker = commands()
    capacity = one_worker["worker"]["capacity"]

    def limit(*changes):
        return tomllib.loads(render(merge(without, *changes)).gateway_toml())["servers"]["sessions"]

    assert (limit(), limit(one_worker)) == (1, capacity)
    with pytest.raises(helm_python.HelmRenderError, match=f"a worker accepts {capacity} sessions"):
        limit(one_worker, {"worker": {"capacity": capacity + 1}})


def test_the_readme_assumes_no_more_calls_than_a_memory_plan_accepts():
    plans = json.loads((CHART / "files" / "gpu-plans.json").read_text())
    agents = json.loads((CHART / "files" / "sessions.json").read_text())["gpu"]["instances"]
    rows = re.findall(
        r"^\| [^|]*\((\w+)\), profile gpu \| [\d.]+ \| (\d+)", (EKS / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 3
    for gpu, calls in rows:
        assert int(calls) <= agents * plans[gpu]["sessions"]


def test_nodes_have_one_version_until_it_is_changed():
    (node_class,) = [one["spec"] for one in NODES if one["kind"] == "EC2NodeClass"]
    (term,) = node_class["amiSelectorTerms"]
    assert re.fullmatch(r"bottlerocket@v\d+\.\d+\.\d+", term["alias"])


def test_controllers_are_installed_as_the_cluster_file_prepares_them():
    readme = (EKS / "README.md").read_text()
    assert CLUSTER["managedNodeGroups"][0]["disablePodIMDS"]
    assert "--set region=$AWS_REGION --set vpcId=$VPC" in readme
    for one in CLUSTER["iam"]["podIdentityAssociations"]:
        if one.get("createServiceAccount"):
            name, namespace = one["serviceAccountName"], one["namespace"]
            (install,) = re.findall(rf"^helm install {name} .*?--wait$", readme, re.MULTILINE | re.DOTALL)
            assert f"--namespace {namespace}" in install
            assert f"--set serviceAccount.create=false --set serviceAccount.name={name}" in install
    for label in (
        "pod-security.kubernetes.io/enforce=restricted",
        "elbv2.k8s.aws/pod-readiness-gate-inject=enabled",
    ):
        assert label in readme
    release = VALUES["monitoring"]["podMonitor"]["labels"]["release"]
    assert f"helm install {release} prometheus-community/kube-prometheus-stack" in readme


def test_the_costs_in_the_readme_follow_from_its_figures():
    rows = re.findall(
        r"^\| [^|]*\| ([\d.]+) \| [^|]*?(\d+)[^|]* \| ([\d.]+) \|$",
        (EKS / "README.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) >= 5
    for price, calls, cost in rows:
        assert float(cost) == pytest.approx(float(price) / 60 / (int(calls) * 0.7), rel=0.05)

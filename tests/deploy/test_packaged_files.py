"""What the chart packages of other folders is the same there, and Prometheus accepts it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import yaml
from charts import CHART, ROOT, render
from observe import find_program
from value_sets import SETS

import chart_files

GPUS = yaml.safe_load((CHART / "files" / "gpu-classes.yaml").read_text())
PLANS = json.loads((CHART / "files" / "gpu-plans.json").read_text())


@pytest.fixture(scope="module")
def promtool():
    try:
        return find_program("promtool")
    except FileNotFoundError:
        if shutil.which("apt-get"):
            raise
        pytest.skip("this machine has no package of Prometheus")


def check_rules(promtool, groups, folder):
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_copies_in_the_chart_are_up_to_date():
    expected = chart_files.copies()
    for copy, content in expected.items():
        assert copy.read_bytes() == content, "run python3 build/chart_files.py"
    assert set((CHART / "files" / "dashboards").iterdir()) <= set(expected)


def test_the_alerts_are_those_of_the_repository_except_for_two_times(promtool, tmp_path):
    original = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    (rule,) = render(SETS["eks-production"]).of_kind("PrometheusRule")
    groups = rule["spec"]["groups"]
    check_rules(promtool, groups, tmp_path)
    rules = {one.get("alert"): one for group in original for one in group["rules"]}
    # drain.seconds and five minutes; worker.startupSeconds and two.
    rules["ParleyDrainOverdue"]["for"] = "2100s"
    rules["ParleyTargetDown"]["for"] = "2040s"
    assert groups == original


def test_alerts_can_be_changed_and_left_out(promtool, tmp_path):
    (rule,) = render(SETS["adapted-alerts"]).of_kind("PrometheusRule")
    check_rules(promtool, rule["spec"]["groups"], tmp_path)
    alerts = {
        one["alert"]: one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one
    }
    assert alerts["ParleySlowAnswers"]["for"] == "20m"
    assert "ParleyNoAnswers" not in alerts


def test_the_dashboards_arrive_whole():
    maps = [
        one
        for one in render(SETS["eks-production"]).of_kind("ConfigMap")
        if one["metadata"]["labels"].get("grafana_dashboard")
    ]
    found = {name: json.loads(text) for one in maps for name, text in one["data"].items()}
    originals = {
        file.name: json.loads(file.read_text()) for file in (ROOT / "deploy" / "grafana").glob("*.json")
    }
    assert found == originals


def test_scraped_jobs_have_the_names_that_the_alerts_look_for():
    monitors = render(SETS["eks-production"]).of_kind("PodMonitor")
    jobs = {one["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["replacement"] for one in monitors}
    assert jobs == {"parley", "parley-gateway"}


def test_every_class_of_gpus_has_a_memory_plan():
    assert set(GPUS) == set(PLANS)
    schema = json.loads((CHART / "values.schema.json").read_text())
    worker = schema["properties"]["worker"]["properties"]
    assert worker["gpu"]["properties"]["class"]["enum"] == ["none", *GPUS]


def test_the_chart_packages_of_the_memory_plans_what_its_templates_read():
    templates = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    for plan in PLANS.values():
        assert not [name for name in plan if f" .{name}" not in templates]


def test_compiled_models_are_kept_for_new_pods():
    def cache(values):
        pod = render(SETS[values]).pod("worker")
        (volume,) = [one for one in pod["volumes"] if one["name"] == "cache"]
        (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "cache"]
        assert mount["mountPath"] == "/var/cache/parley"
        return volume

    assert cache("gpu-cache-claim")["persistentVolumeClaim"] == {"claimName": "parley-cache"}
    assert "emptyDir" in cache("single-gpu")


@pytest.mark.parametrize(("values", "name"), [("single-gpu", "L4"), ("gpu-T4", "T4"), ("gpu-H200", "H200")])
def test_a_memory_plan_reaches_the_models(values, name):
    rendered = render(SETS[values])
    environment = {one["name"]: one.get("value") for one in rendered.container("worker")["env"]}
    assert environment["PARLEY_GPU_CLASS"] == name
    sessions = PLANS[name]["sessions"]
    assert environment["PARLEY_VOICE_AGENT_MAX_SESSIONS"] == str(sessions)
    limits = rendered.container("worker")["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1
    assert rendered.pod("worker")["nodeSelector"]["karpenter.k8s.aws/instance-gpu-name"] == name.lower()

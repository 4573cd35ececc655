"""Workers are added by the sessions of those that do not drain."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from charts import ROOT, merge, render
from test_packaged_files import promtool
from test_settings import run_in_project
from value_sets import SETS

__all__ = ["promtool"]


def trigger(values, component="worker"):
    scaled = render(values).get("ScaledObject", f"-{component}")
    return scaled["spec"]["triggers"][0]["metadata"]


def series(name, pod, value, instance="0", release="calls"):
    pod_labels = f'namespace="voice", pod="{release}-parley-worker-{pod}", instance="{pod}:8002"'
    labels = f'{pod_labels}, model_instance="{instance}"'
    return {"series": f"{name}{{{labels}}}", "values": f"{value}x10"}


def evaluate(promtool, query, inputs, samples, folder):
    file = folder / "test.yaml"
    test = {
        "interval": "15s",
        "input_series": inputs,
        "promql_expr_test": [{"expr": query, "eval_time": "1m", "exp_samples": samples}],
    }
    (folder / "none.yaml").write_text("groups: []\n")
    file.write_text(yaml.safe_dump({"rule_files": ["none.yaml"], "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sessions_of_draining_workers_are_not_counted(promtool, tmp_path):
    query = trigger(merge(SETS["eks-production"], {"autoscaling": {"keda": {"bufferSessions": 0}}}))["query"]
    inputs = [
        series("voice_agent_active_sessions", "a", 10, "0"),
        series("voice_agent_active_sessions", "a", 5, "1"),
        series("voice_agent_draining", "a", 0, "0"),
        series("voice_agent_draining", "a", 0, "1"),
        series("voice_agent_active_sessions", "b", 30, "0"),
        series("voice_agent_draining", "b", 1, "0"),
        series("voice_agent_active_sessions", "c", 7, "0", release="other"),
    ]
    evaluate(promtool, query, inputs, [{"labels": "{}", "value": 15}], tmp_path)


def test_the_buffer_is_added(promtool, tmp_path):
    query = trigger(SETS["eks-production"])["query"]
    inputs = [series("voice_agent_active_sessions", "a", 10)]
    evaluate(promtool, query, inputs, [{"labels": "{}", "value": 30}], tmp_path)


def test_series_that_are_gone_are_no_result_and_keep_the_pods(promtool, tmp_path):
    values = SETS["eks-production"]
    evaluate(promtool, trigger(values)["query"], [], [], tmp_path)
    assert trigger(values)["ignoreNullValues"] == "false"
    scaled = render(values).get("ScaledObject", "-worker")
    assert scaled["spec"]["fallback"] == {
        "failureThreshold": 3,
        "replicas": 4,
        "behavior": "currentReplicasIfHigher",
    }


_CAPACITY = """
import json
from parley_client.cli.capacity.report import TARGET_UTILIZATION
from parley_client.cli.program import build_parser
print(json.dumps({
    "target": TARGET_UTILIZATION,
    "fill": build_parser().parse_args(["capacity"]).fill,
}))
"""


def test_target_utilization_of_the_chart_is_that_of_parley_capacity():
    wanted = json.loads(run_in_project(_CAPACITY, None))
    full = merge(SETS["eks-production"], {"worker": {"sessions": 40, "capacity": 30}})
    assert float(trigger(full)["threshold"]) == pytest.approx(30 * wanted["target"])
    assert wanted["fill"] == wanted["target"], "parley capacity counts with another share"
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "parley" / "values.yaml").read_text())
    for component in ("worker", "gateway"):
        found = values[component]
        share = found.get("targetUtilization") or found["autoscaling"]["targetUtilization"]
        assert share == wanted["target"], component


def test_other_labels_can_be_asked_for():
    values = merge(SETS["eks-production"], {"autoscaling": {"keda": {"matchers": 'job="voice"'}}})
    assert trigger(values)["query"].count('{job="voice"}') == 2


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, "1.4"),
        ({"sessions": 32, "capacity": 10}, "7"),
        ({"sessions": 32, "capacity": 10, "targetUtilization": 0.85}, "8.5"),
        ({"sessions": 8}, "5.6"),
    ],
)
def test_a_worker_is_filled_as_far_as_wanted(values, wanted):
    keda = merge(SETS["cpu"], {"autoscaling": {"kind": "keda"}, "worker": values})
    assert trigger(keda)["threshold"] == wanted


def test_a_gpu_class_has_its_own_number_of_sessions():
    keda = merge(SETS["single-gpu"], {"autoscaling": {"kind": "keda"}})
    assert trigger(keda)["threshold"] == "5.6"
    environment = {one["name"]: one.get("value") for one in render(keda).container("worker")["env"]}
    assert environment["PARLEY_VOICE_AGENT_MAX_SESSIONS"] == "2"


def test_the_other_scaler_has_the_same_aim_and_the_same_patience():
    keda = render(merge(SETS["hpa"], {"autoscaling": {"kind": "keda"}})).get("ScaledObject", "-worker")
    hpa = render(SETS["hpa"]).get("HorizontalPodAutoscaler", "-worker")
    target = hpa["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    assert target == keda["spec"]["triggers"][0]["metadata"]["threshold"] == "4.2"
    behavior = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert hpa["spec"]["behavior"] == behavior
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 600


def gateway_series(name, pod, value, **labels):
    given = {"namespace": "voice", "pod": f"calls-parley-gateway-{pod}", "instance": f"{pod}:9102", **labels}
    text = ", ".join(f'{key}="{label}"' for key, label in given.items())
    return {"series": f"{name}{{{text}}}", "values": f"{value}x10"}


def test_gateways_follow_their_calls(promtool, tmp_path):
    values = SETS["eks-production"]
    inputs = [
        gateway_series("parley_gateway_calls", "a", 10, api="sessions"),
        gateway_series("parley_gateway_calls", "a", 3, api="twilio"),
        gateway_series("parley_gateway_draining", "a", 0),
        gateway_series("parley_gateway_calls", "b", 20, api="sessions"),
        gateway_series("parley_gateway_draining", "b", 1),
        gateway_series("parley_gateway_calls", "c", 9, api="sessions", namespace="other"),
    ]
    found = trigger(values, "gateway")
    evaluate(promtool, found["query"], inputs, [{"labels": "{}", "value": 13}], tmp_path)
    evaluate(promtool, found["query"], [], [], tmp_path)
    assert found["ignoreNullValues"] == "false"
    assert found["threshold"] == "16.8"  # 0.7 of gateway.calls
    triggers = render(values).get("ScaledObject", "-gateway")["spec"]["triggers"]
    assert [one["type"] for one in triggers] == ["prometheus", "cpu"]


def test_gateways_follow_their_calls_by_an_adapter_too():
    metrics = render(SETS["hpa"]).get("HorizontalPodAutoscaler", "-gateway")["spec"]["metrics"]
    assert metrics[0]["pods"] == {
        "metric": {"name": "parley_gateway_calls"},
        "target": {"type": "AverageValue", "averageValue": "16.8"},
    }
    assert metrics[1]["resource"]["target"]["averageUtilization"] == 60

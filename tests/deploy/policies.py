"""What every pod of the chart has to satisfy, as a policy engine judges it: policies.rego."""

from __future__ import annotations

import functools
from pathlib import Path

import regopy

_POLICIES = Path(__file__).with_name("policies.rego")


@functools.cache
def _engine():
    engine = regopy.Interpreter()
    engine.add_module(_POLICIES.name, _POLICIES.read_text())
    return engine


def violations(workload):
    """Sentences about a Deployment; empty: it is as it has to be."""
    engine = _engine()
    engine.set_input(workload)
    (result,) = engine.query("data.parley.deny").results
    (found,) = result.expressions
    return [f"{workload['metadata']['name']}: {text}" for text in found]

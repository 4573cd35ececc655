"""The gateway's image has the packages of gateway.txt alone: they have to be all that the gateway imports."""

import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp

LOCK = Path(__file__).parents[3] / "build/requirements/gateway.txt"
OPTIONAL = {"espeakng_loader"}
"""Imported where a voice of eSpeak is loaded, in the worker."""


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_has_what_the_gateway_imports():
    graph = grimp.build_graph(
        "parley", "parley_gateway", "parley_client", "parley_stages", include_external_packages=True
    )
    own = [module for module in graph.modules if module.partition(".")[0] == "parley_gateway"]
    reached = set().union(*map(graph.find_upstream_modules, own))
    imported = {module.partition(".")[0] for module in reached if graph.is_module_squashed(module)}
    locked = {plain(found[0]) for found in re.finditer(r"^[\w.-]+", LOCK.read_text(), re.MULTILINE)}
    distributions = packages_distributions()
    missing = {
        module
        for module in imported - sys.stdlib_module_names - OPTIONAL
        if not locked & {plain(name) for name in distributions.get(module, [module])}
    }
    assert not missing

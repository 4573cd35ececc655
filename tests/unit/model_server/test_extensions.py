"""What another package brings, and what is left where it, or PyTorch, is not installed."""

import ast
import subprocess
import sys
import tomllib
from pkgutil import resolve_name

import pytest

from parley.launcher.options import ROOT
from parley.runtime import extensions
from parley.runtime.extensions import find_extensions

TABLE = tomllib.loads((ROOT / "src/parley/runtime/extensions.toml").read_text())
REFERENCES = {reference for table in TABLE.values() for reference in table.values()}


def run_without(module, program):
    """The value that a program prints where a module cannot be imported."""
    lines = f"import sys\nsys.modules[{module!r}] = None\n{program}"
    found = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    return ast.literal_eval(found.stdout)


@pytest.mark.parametrize("reference", sorted(REFERENCES))
def test_reference_of_the_table_is_a_function(reference):
    assert callable(resolve_name(reference))


def test_extension_is_imported_when_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "brought.py").write_text("def double(number):\n    return 2 * number\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "_read_table", lambda: {"sums": {"double": "brought:double"}})
    double = find_extensions("sums")["double"]
    assert "brought" not in sys.modules
    assert double(3) == 6


def test_canaries_and_lists_of_files_do_not_import_torch():
    program = """
from pkgutil import resolve_name
from parley.runtime.extensions import find_extensions
found = [*find_extensions("canaries").values(), *find_extensions("weight_files").values()]
print([callable(resolve_name(one.reference)) for one in found])
"""
    assert run_without("torch", program) == [True] * (len(TABLE["canaries"]) + len(TABLE["weight_files"]))


def test_package_that_is_not_installed_brings_nothing():
    program = """
from parley.canaries.models import CANARIES
from parley.models import nemotron_streaming, parakeet_decoder, parakeet_encoder
engines = [list(one._ENGINES) for one in (nemotron_streaming, parakeet_decoder, parakeet_encoder)]
print(([model for model in CANARIES], engines))
"""
    canaries, engines = run_without("parley_torch", program)
    assert {"espeak", "voice_agent"} <= set(canaries)
    assert not set(canaries) & set(TABLE["canaries"])
    assert engines == [["onnx"]] * 3

"""tests/cpus.py: libraries that choose their code as on another processor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# At the end, and not for long: to torch the folder of the server's tests looks like the package triton.
sys.path.append(str(Path(__file__).parents[2]))

import cpus

sys.path.pop()

HASWELL = cpus.PROCESSORS[2]
AS_HASWELL = cpus.Libraries(["Haswell"], ["AVX2"], "avx2", "Intel AVX2", "COMPATIBLE")


def test_libraries_that_chose_as_they_should_are_accepted():
    assert cpus.refusals(HASWELL, AS_HASWELL) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("openblas", ["Cooperlake"]),
        ("openblas", []),
        ("numpy", ["AVX2", "AVX512F"]),
        ("torch", "avx512"),
        ("onednn", "Intel AVX-512 with AVX512BW"),
        ("mkl", "OFF"),
    ],
)
def test_a_library_that_did_not_is_named(name, value):
    (wrong,) = cpus.refusals(HASWELL, AS_HASWELL._replace(**{name: value}))
    assert wrong.lower().startswith(name)


def test_the_foreign_kind_is_one_that_this_machine_is_not():
    wide = AS_HASWELL._replace(torch="avx512")
    assert cpus.foreign(wide).torch == "avx2"
    assert cpus.foreign(AS_HASWELL).torch == "default"


@pytest.mark.timeout(600)  # torch is imported twice
def test_the_variables_take_effect_on_this_machine():
    native = cpus.ask(cpus.own_environment())
    kind = cpus.foreign(native)
    chosen = cpus.ask({**cpus.own_environment(), **cpus.variables(kind, native)})
    assert cpus.refusals(kind, chosen) == []
    assert cpus.refusals(kind, native) != []

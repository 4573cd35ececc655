"""An installation whose tritonserver is a script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parley.launcher.command import Installation
from parley.launcher.options import TINY_PROFILE


@pytest.fixture
def installation(tmp_path):
    program = tmp_path / "tritonserver"
    fake = Path(__file__).with_name("fake_triton.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    program.chmod(0o755)
    backend = tmp_path / "python_backend"
    backend.mkdir()
    (backend / "libtriton_python.so").touch()
    stub = tmp_path / "triton_python_backend_stub"
    stub.touch()
    return Installation(
        tritonserver=program,
        python_backend=backend,
        stub=stub,
        libraries=tmp_path / "libs",
        libpython_dir=Path("/python/lib"),
        python_bin=Path(sys.prefix) / "bin",
    )


@pytest.fixture
def repository(tmp_path):
    """A model repository with one model that two processes serve in the tiny profile."""
    folder = tmp_path / "repository" / "echo"
    (folder / "configs").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "echo"\ninstance_group [{ kind: KIND_GPU count: 1 }]\n')
    (folder / "configs" / f"{TINY_PROFILE}.pbtxt").write_text(
        'name: "echo"\ninstance_group [{ kind: KIND_CPU count: 2 }]\n'
    )
    return folder.parent

"""The images, built once, and one installation of them as the compose file describes it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from containers import ROOT, TAG, Container, Network, build, make_base

PROGRAMS = ("buildah", "crun", "debootstrap", "ip", "nginx", "openssl", "podman", "redis-server", "runc")
COMPOSE = ROOT / "deploy" / "compose"
TOOLS = ROOT / ".venv-tools" / "bin"


@pytest.fixture(scope="session")
def root_on_debian():
    """Skips where containers cannot be built and run."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")


@pytest.fixture(scope="session")
def built(root_on_debian, tmp_path_factory):
    """Builds an image when it is first asked for, by its name; what the build printed last."""
    make_base(tmp_path_factory.mktemp("base"))
    return functools.cache(build)


@pytest.fixture(scope="session")
def images(built):
    """The images without a GPU."""
    return [built(name) for name in ("gateway", "worker-cpu", "weights")]


@pytest.fixture(scope="session")
def secrets(tmp_path_factory):
    """The folder that deploy/compose/prepare and prepare_tls fill."""
    folder = tmp_path_factory.mktemp("prepared") / "secrets"
    environment = {
        **os.environ,
        "PARLEY": str(Path(sys.executable).with_name("parley")),
        "PARLEY_SECRETS": str(folder),
    }
    for program in ("prepare", "prepare_tls"):
        done = subprocess.run(
            [COMPOSE / program], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def network(root_on_debian):
    with Network(f"parley-{TAG}-{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="session")
def worker(images, network, tmp_path_factory):
    """A worker with the models of the profile tiny, ready."""
    container = Container(
        "worker-cpu",
        network,
        tmp_path_factory.mktemp("worker"),
        environment={"PARLEY_MODELS_DIR": "/opt/parley/models"},
        tmpfs=("/tmp", "/var/lib/parley/server", "/var/cache/parley"),  # noqa: S108 - in the container
        arguments=("--profile", "tiny"),
    )
    with container:
        container.wait_for("ready grpc=")
        yield container

"""Building and running containers with buildah and podman, without a daemon and without systemd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "localhost/parley-base:bookworm"
TAG = "test"
USER = 10001
_READY_S = 900.0
# The default of podman raises limits, which a machine without CAP_SYS_RESOURCE may not.
_CONFIG = """\
[containers]
default_ulimits = []
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
runtime = "crun"
events_logger = "file"
"""
# crun knows version 1 or 2 of control groups, not both together.
WITHOUT_HYBRID = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'


def image(name):
    return f"localhost/parley/{name}:{TAG}"


def run(*command, **options):
    """Run a program; a failure shows the end of what it wrote."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options, check=False
    )
    assert done.returncode == 0, f"{command[:4]}:\n{(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def make_base(folder):
    """Make the base image of Debian's packages, as debian:bookworm-slim is made."""
    if (
        subprocess.run(
            ["buildah", "inspect", "--type", "image", BASE], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return
    system = folder / "base"
    run("debootstrap", "--variant=minbase", "bookworm", system)
    for place in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(system / place)
        (system / place).mkdir()
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", "--quiet", container, system, "/")
    run("buildah", "commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(system)


def build(name):
    """Build an image as `make images` does."""
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    command = [ROOT / "build/images/build", name, "--tool", "buildah", "--base", BASE, "--tag", TAG]
    return run(*command, env=environment)


@contextmanager
def mounted(name):
    """The folder with an image's files."""
    container = run("buildah", "from", image(name)).strip()
    try:
        yield Path(run("buildah", "mount", container).strip())
    finally:
        run("buildah", "rm", container)


def settings(name):
    """An image's configuration."""
    return json.loads(run("buildah", "inspect", "--type", "image", image(name)))["Docker"]["config"]


class Network:
    """A network namespace: every port is free in it, and the services have the names of the compose file."""

    def __init__(self, name):
        self.name = name
        self._hosts = Path("/etc/netns") / name

    def __enter__(self):
        run("ip", "netns", "add", self.name)
        self.run("ip", "link", "set", "lo", "up")
        self._hosts.mkdir(parents=True)
        (self._hosts / "hosts").write_text("127.0.0.1 localhost gateway worker redis\n")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._hosts)
        run("ip", "netns", "delete", self.name)

    def command(self, *command):
        return ["ip", "netns", "exec", self.name, *(str(part) for part in command)]

    def run(self, *command, **options):
        return run(*self.command(*command), **options)


class Container:
    """A container as hardened as in the compose file; its root is read-only.

    It runs from entering until leaving.
    """

    def __init__(self, name, network, folder, *, environment=None, mounts=(), tmpfs=(), arguments=()):
        self.name = f"parley-test-{name}-{os.getpid()}"
        self._network = network
        self._config = folder / "containers.conf"
        self._config.write_text(_CONFIG)
        self.log = folder / f"{name}.log"
        self._command = [
            *("podman", "run", "--rm", "--name", self.name, "--network", f"ns:/run/netns/{network.name}"),
            *("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--no-healthcheck"),
            *("--no-hosts", "--shm-size", "1g", "--read-only-tmpfs=false"),
            *(option for place in tmpfs for option in ("--tmpfs", f"{place}:rw,mode=1777")),
            *(option for source, place in mounts for option in ("--volume", f"{source}:{place}:ro")),
            *("--volume", f"/etc/netns/{network.name}/hosts:/etc/hosts:ro"),
            *(option for pair in (environment or {}).items() for option in ("--env", "=".join(pair))),
            *(image(name), *arguments),
        ]
        self._process = None

    def _podman(self, command):
        return ["unshare", "--mount", "sh", "-c", WITHOUT_HYBRID, "-", *command]

    @property
    def _environment(self):
        return {**os.environ, "CONTAINERS_CONF": str(self._config)}

    def __enter__(self):
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._podman(self._command), stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.stop()
        self._process.wait(60)

    def wait(self, within_s=120.0):
        """Wait for its own end; returns the exit status."""
        return self._process.wait(within_s)

    def stop(self, within_s=60.0):
        """Send SIGTERM as a container program does; returns the exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            subprocess.run(
                self._podman(["podman", "rm", "--force", self.name]), env=self._environment, check=False
            )
            raise

    def execute(self, *command):
        """Run a command inside of it; returns its exit status and what it wrote."""
        done = subprocess.run(
            self._podman(["podman", "exec", self.name, *command]),
            capture_output=True,
            text=True,
            env=self._environment,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def wait_for(self, text):
        """Wait until it has written a text."""
        end = time.monotonic() + _READY_S
        while text not in self.log.read_text(errors="replace"):
            assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < end, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def is_healthy(self):
        """Run the image's own health check once."""
        check = settings(self.name.split("-", 2)[2].rpartition("-")[0])["Healthcheck"]["Test"]
        assert check[0] == "CMD"
        return self.execute(*check[1:])

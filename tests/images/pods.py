"""Pods of the Helm chart under podman, and what a kubelet does for them and podman does not."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import yaml
from containers import ROOT, TAG, WITHOUT_HYBRID

# Pods have control groups, unlike the containers of the other tests: runc knows both versions at once.
_CONFIG = """\
[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""
_RENDER = """
import json, sys
from charts import chart, read_documents
given = json.load(sys.stdin)
files = chart().render(given["values"], name=given["name"], namespace="voice")
objects = [one for path, text in files.items() if path.endswith(".yaml") for one in read_documents(text)]
print(json.dumps(objects))
"""
_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's own name for it


def render(name, values):
    """The chart's objects, by Helm's own engine."""
    done = subprocess.run(
        [ROOT / ".venv-tools" / "bin" / "python", "-c", _RENDER],
        input=json.dumps({"name": name, "values": values}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "deploy")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cpu_values(**parts):
    """The chart's smallest set of values, with the images that were built here."""
    values = yaml.safe_load((ROOT / "deploy/helm/parley/ci/minimal-values.yaml").read_text())
    for component, image in (("gateway", "gateway"), ("worker", "worker-cpu")):
        given = {"repository": f"localhost/parley/{image}", "tag": TAG, "pullPolicy": "Never"}
        values[component] = {**values.get(component, {}), "image": given, **parts.get(component, {})}
    return {**values, **{name: part for name, part in parts.items() if name not in ("gateway", "worker")}}


class Pod:
    """The pod of a Deployment. It runs from entering until leaving."""

    def __init__(self, network, folder, objects, component):
        (workload,) = [
            one
            for one in objects
            if one["kind"] == "Deployment"
            and one["metadata"]["labels"]["app.kubernetes.io/component"] == component
        ]
        self._network = network
        self._folder = folder
        self._pod = self._container = ""
        self.spec = workload["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self._file = folder / f"{component}.yaml"
        maps = [one for one in objects if one["kind"] == "ConfigMap"]
        played = copy.deepcopy(workload)
        pod = played["spec"]["template"]["spec"]
        # Names, for Kubernetes; podman would publish them.
        del pod["containers"][0]["ports"]
        # Debian's podman knows no emptyDir in memory, and makes one that the user may not write.
        name = workload["metadata"]["name"]
        self._memory = {
            one["name"]: _MEMORY / f"{name}-{one['name']}"
            for one in pod["volumes"]
            if one.get("emptyDir", {}).get("medium") == "Memory"
        }
        for volume in pod["volumes"]:
            if place := self._memory.get(volume["name"]):
                del volume["emptyDir"]
                volume["hostPath"] = {"path": str(place)}
        self._maps = [one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one]
        self._file.write_text(yaml.safe_dump_all([*maps, played]))
        self._config = folder / "containers.conf"
        self._config.write_text(_CONFIG)

    def __enter__(self):
        for folder in self._memory.values():
            folder.mkdir()
            folder.chmod(0o1777)
        try:
            said = self._podman("kube", "play", "--network", "host", self._file)
        except AssertionError:
            self._run("podman", "kube", "down", self._file)
            self._remove_places()
            raise
        (self._pod,) = re.findall(r"^Pod:\n(\w+)$", said, re.MULTILINE)
        (self._container,) = re.findall(r"^Container:\n(\w+)$", said, re.MULTILINE)
        return self

    def __exit__(self, *_):
        log = self._run("podman", "logs", self._container).stdout
        (self._folder / f"{self.container['name']}.log").write_text(log)
        self._podman("pod", "rm", "--force", "--time", "0", self._pod)
        self._remove_places()
        for name in self._maps:
            self._podman("volume", "rm", name)

    def _remove_places(self):
        for folder in self._memory.values():
            shutil.rmtree(folder)

    def _program(self, *command):
        """A command line in the network of the test, which is the host's for podman."""
        network = ["nsenter", f"--net=/run/netns/{self._network.name}"]
        return [*network, "unshare", "--mount", "sh", "-c", WITHOUT_HYBRID, "-", *map(str, command)]

    def _run(self, *command):
        return subprocess.run(
            self._program(*command),
            env={**os.environ, "CONTAINERS_CONF": str(self._config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def _podman(self, *command):
        done = self._run("podman", *command)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def execute(self, command):
        """Run a command in the container; its exit status and what it wrote."""
        done = self._run("podman", "exec", self._container, *command)
        return done.returncode, done.stdout

    def inspect(self):
        """What podman knows of the container."""
        return json.loads(self._podman("inspect", self._container))[0]

    def wait_until_started(self):
        """Run the startup probe, as long as a kubelet does, until it succeeds; then the readiness probe."""
        probe = self.container["startupProbe"]
        end = time.monotonic() + probe["periodSeconds"] * probe["failureThreshold"]
        while not self._probe("startupProbe"):
            assert self.inspect()["State"]["Running"], self._run("podman", "logs", self._container).stdout[
                -3000:
            ]
            assert time.monotonic() < end, self._run("podman", "logs", self._container).stdout[-3000:]
            time.sleep(0.5)
        assert self._probe("readinessProbe")

    def _probe(self, name):
        probe = self.container[name]
        if "exec" in probe:
            return self.execute(probe["exec"]["command"])[0] == 0
        asked = probe["httpGet"]
        (port,) = [one["containerPort"] for one in self.container["ports"] if one["name"] == asked["port"]]
        program = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}{asked['path']}')"
        command = self._network.command("python3", "-c", program)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def begin_end(self):
        """Start what a kubelet runs first when a pod is deleted; its process."""
        before = self.container["lifecycle"]["preStop"]
        command = (
            ["sleep", str(before["sleep"]["seconds"])] if "sleep" in before else before["exec"]["command"]
        )
        # A kubelet does the sleeping itself.
        inside = [] if "sleep" in before else ["podman", "exec", self._container]
        return subprocess.Popen(
            self._program(*inside, *command),
            env={**os.environ, "CONTAINERS_CONF": str(self._config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stop(self):
        """SIGTERM, and SIGKILL after the pod's grace; the exit status of the container."""
        self._podman("pod", "stop", "--time", self.spec["terminationGracePeriodSeconds"], self._pod)
        return self.inspect()["State"]["ExitCode"]

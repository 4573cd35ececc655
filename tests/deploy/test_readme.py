"""The commands of the chart's README: what they install, and what was built and pushed before."""

from __future__ import annotations

import itertools
import json
import re
import shlex

import pytest
import yaml
from charts import CHART, ROOT, merge, read_documents, render

README = (CHART / "README.md").read_text().replace("\\\n", " ")
REGISTRY = "registry.example.com"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


def installed(command):
    """The values of a command ``helm install``."""
    words = shlex.split(command.replace("$REGISTRY", REGISTRY))
    values = []
    for option, given in itertools.pairwise(words):
        if option == "--values":
            values += read_documents((ROOT / given).read_text())
        elif option in ("--set", "--set-json"):
            path, _, value = given.partition("=")
            value = json.loads(value) if option == "--set-json" else value
            for name in reversed(path.split(".")):
                value = {name: value}
            values.append(value)
    return merge(*values)


COMMANDS = [installed(line) for line in re.findall(r"^helm install calls .*$", README, re.MULTILINE)]


def test_readme_shows_every_profile():
    profiles = [
        next(word for word in render(one).container("worker")["args"] if word.startswith("--profile"))
        for one in COMMANDS
    ]
    assert profiles == ["--profile=open", "--profile=tiny", "--profile=gpu"]


@pytest.mark.parametrize("values", COMMANDS, ids=["open", "tiny", "gpu"])
def test_images_of_the_pods_are_built_and_pushed(values):
    (built,) = re.findall(r'^make images ARGS="--tag (.*)"$', README, re.MULTILINE)
    (pushed,) = re.findall(r"^for image in (.*); do$", README, re.MULTILINE)
    assert built == VERSION
    pods = [one["spec"]["template"]["spec"] for one in render(values).of_kind("Deployment")]
    used = {one["image"] for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])}
    by_name = re.findall(r"docker push \$REGISTRY/(parley/\S+)", README)
    assert used <= {f"{REGISTRY}/{image}" for image in (*pushed.split(), *by_name)}


def test_names_in_the_commands_are_those_of_the_release():
    rendered = render(COMMANDS[0])
    (deployment,) = re.findall(r"rollout status deployment/(\S+)", README)
    assert rendered.get("Deployment", "-worker")["metadata"]["name"] == deployment
    ((service, port),) = re.findall(r"port-forward service/(\S+) 8080:(\d+)", README)
    (found,) = [one for one in rendered.of_kind("Service") if one["metadata"]["name"] == service]
    assert int(port) in {one["port"] for one in found["spec"]["ports"]}


def test_the_secret_has_the_files_that_the_gateway_mounts():
    (secret,) = re.findall(r"^kubectl .* create secret generic .*$", README, re.MULTILINE)
    (name,) = re.findall(r"generic (\S+)", secret)
    files = set(re.findall(r"--from-file=\$SECRETS/(\S+)", secret))
    (volume,) = [one for one in render(COMMANDS[0]).pod("gateway")["volumes"] if one["name"] == "secrets"]
    assert volume["secret"]["secretName"] == name
    assert {one["key"] for one in volume["secret"]["items"]} == files

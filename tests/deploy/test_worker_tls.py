"""Mutual TLS between gateways and workers: both name the same files, and the documented certificates fit."""

from __future__ import annotations

import re
import tomllib

from charts import CHART, NAMESPACE, RELEASE, read_documents, render
from test_settings import run_in_project
from value_sets import SETS

_READ = """
import json, sys
from parley.launcher.__main__ import parser, read_options
from parley.tls import read_tls
given = json.load(sys.stdin)
tls, probe = read_options(parser().parse_args(given["args"])).tls, read_tls(given["environment"])
assert [str(file) for file in (tls.cert_file, tls.key_file, tls.client_ca_file)] == given["files"], tls
assert [str(file) for file in (probe.cert_file, probe.key_file, probe.ca_file)] == given["files"], probe
assert probe.server_name == given["name"], probe
"""


def mounted(rendered, component):
    """Folder, Secret and files of the certificate in the pods."""
    (mount,) = [one for one in rendered.container(component)["volumeMounts"] if one["name"] == "worker-tls"]
    (volume,) = [one for one in rendered.pod(component)["volumes"] if one["name"] == "worker-tls"]
    assert mount["readOnly"]
    assert "subPath" not in mount, "the file would never be renewed"
    secret = volume["secret"]
    return mount["mountPath"], secret["secretName"], {item["path"] for item in secret["items"]}


def host_of_workers(rendered):
    (address,) = tomllib.loads(rendered.gateway_toml())["servers"]["addresses"]
    return address.removeprefix("dns://").rpartition(":")[0].rstrip(".")


def test_both_sides_use_the_files_of_their_secrets():
    rendered = render(SETS["worker-tls"])
    for component in ("worker", "gateway"):
        folder, secret, files = mounted(rendered, component)
        assert (secret, files) == (f"parley-{component}-tls", {"tls.crt", "tls.key", "ca.crt"})
    settings = tomllib.loads(rendered.gateway_toml())["servers"]["tls"]
    names = {"ca_file": "ca.crt", "cert_file": "tls.crt", "key_file": "tls.key"}
    assert settings == {name: f"{folder}/{file}" for name, file in names.items()}
    container = rendered.container("worker")
    run_in_project(
        _READ,
        {
            "args": container["args"],
            "environment": {one["name"]: one["value"] for one in container["env"] if "value" in one},
            "files": [f"{folder}/{file}" for file in ("tls.crt", "tls.key", "ca.crt")],
            "name": host_of_workers(rendered),
        },
    )


def test_without_secrets_there_is_none():
    rendered = render(SETS["cpu"])
    assert "tls" not in tomllib.loads(rendered.gateway_toml())["servers"]
    assert not [part for part in rendered.container("worker")["args"] if "tls" in part]
    for component in ("worker", "gateway"):
        assert "worker-tls" not in [one["name"] for one in rendered.pod(component)["volumes"]]


def test_the_documented_certificates_are_those_that_are_asked_for():
    readme = (CHART / "README.md").read_text()
    section = readme.partition("\n## TLS between gateways and workers\n")[2]
    worker, gateway = read_documents(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1])
    assert f"release `{RELEASE}`" in section
    rendered = render(SETS["worker-tls"])
    assert worker["spec"]["dnsNames"] == [host_of_workers(rendered)]
    assert worker["spec"]["usages"] == ["server auth", "client auth"]
    assert gateway["spec"]["usages"] == ["client auth"]
    for found, component in ((worker, "worker"), (gateway, "gateway")):
        assert found["metadata"]["namespace"] == NAMESPACE
        assert found["spec"]["secretName"] == SETS["worker-tls"]["workerTls"][f"{component}Secret"]
    assert f"rollout restart deployment/{RELEASE}-parley-worker" in section

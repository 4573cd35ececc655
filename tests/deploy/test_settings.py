"""What the chart says to the gateway and to the models exists there."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tomllib

import pytest
from charts import ROOT, merge, render
from value_sets import NEEDED, SETS

_READ = """
import json, sys, tempfile
from pathlib import Path
from parley_gateway.settings import load_settings
with tempfile.TemporaryDirectory() as folder:
    for given in json.load(sys.stdin):
        file = Path(folder) / "gateway.toml"
        file.write_text(given["toml"])
        load_settings(file, given["environment"])
"""
_PARSE = """
import json, sys
from parley.launcher.__main__ import parser
from parley_client.cli.program import build_parser
given = json.load(sys.stdin)
for command in given["parley"]:
    build_parser().parse_args(command)
parser().parse_args(given["launcher"])
sys.path.insert(0, given["scripts"])
from fetching import main, manifest
for command in given["weights"]:
    main._parser(manifest.load()).parse_args(command)
"""


def run_in_project(program, given):
    """What a Python program prints, run in the environment that has Parley with a JSON object as input."""
    python = ROOT / ".venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_gateway_accepts_its_configuration():
    given = []
    for values in SETS.values():
        rendered = render(values)
        environment = {
            one["name"]: one["value"]
            for one in rendered.container("gateway")["env"]
            if one["name"].startswith("PARLEY_GATEWAY_") and "value" in one
        }
        given.append({"toml": rendered.gateway_toml(), "environment": environment})
    run_in_project(_READ, given)


_READ_AGENTS = """
import json, sys, tempfile
from pathlib import Path
from parley.agents.folder import read_folder
given = json.load(sys.stdin)
with tempfile.TemporaryDirectory() as folder:
    for name, text in given.items():
        (Path(folder) / name).write_text(text)
    read = read_folder(Path(folder), {})
print(json.dumps({name: file.definition.instructions for name, file in read.items()}))
"""


def test_agents_are_files_where_the_worker_looks_for_them():
    rendered = render(SETS["agents"])
    worker = rendered.container("worker")
    (folder,) = [one["value"] for one in worker["env"] if one["name"] == "PARLEY_VOICE_AGENT_AGENTS"]
    (mounted,) = [one["name"] for one in worker["volumeMounts"] if one["mountPath"] == folder]
    (volume,) = [one for one in rendered.pod("worker")["volumes"] if one["name"] == mounted]
    files = rendered.get("ConfigMap", "-agents")
    assert volume["configMap"]["name"] == files["metadata"]["name"]
    read = json.loads(run_in_project(_READ_AGENTS, files["data"]))
    assert read == {"greeter": 'You say "{{ hello }}".\n', "clinic-2": "x"}


@pytest.mark.parametrize(
    ("values", "claim"), [("agents", None), ("calls-claim", {"claimName": "parley-calls"})]
)
def test_calls_are_recorded_where_a_volume_is_mounted(values, claim):
    pod = render(SETS[values]).pod("worker")
    worker = render(SETS[values]).container("worker")
    (folder,) = [one["value"] for one in worker["env"] if one["name"] == "PARLEY_VOICE_AGENT_CALLS"]
    (mounted,) = [one["name"] for one in worker["volumeMounts"] if one["mountPath"] == folder]
    (volume,) = [one for one in pod["volumes"] if one["name"] == mounted]
    assert volume.get("persistentVolumeClaim") == claim


def test_changed_agent_replaces_no_pods():
    changed = merge(SETS["agents"], {"worker": {"agents": {"greeter": 'instructions = "y"'}}})
    assert render(changed).pod("worker") == render(SETS["agents"]).pod("worker")


def test_values_of_all_types_survive_the_way_into_the_configuration():
    config = {
        "realtime": {"voices": {"alloy": "joe", "ash": 'a "quoted" name'}},
        "uploads": {"disk_bytes": 21474836480},
        "rates": {"store_timeout_s": 0.25},
        "security": {"origins": ["https://app.example.com"], "hosts": []},
        "twilio": {"own_twiml": True, "greeting": None, "system_prompt": "Zwei\nZeilen, <b> & Ünïcode"},
    }
    read = tomllib.loads(render(merge(SETS["cpu"], {"gateway": {"config": config}})).gateway_toml())
    del config["twilio"]["greeting"]
    assert {name: {field: read[name][field] for field in config[name]} for name in config} == config
    assert isinstance(read["uploads"]["disk_bytes"], int)
    assert "greeting" not in read["twilio"]


def test_the_address_that_clients_use_is_announced():
    def announced(name):
        return tomllib.loads(render(SETS[name]).gateway_toml())["listen"].get("public_url")

    assert announced("eks-production") == "https://voice.example.com"
    assert announced("gateway-api-tls") == "https://voice.example.com"
    assert announced("other-ingress") == "http://a.example"
    assert announced("cpu") is None
    own_certificate = merge(SETS["other-ingress"], {"exposure": {"tls": True}})
    assert (
        tomllib.loads(render(own_certificate).gateway_toml())["listen"]["public_url"] == "https://a.example"
    )


def test_the_gateway_finds_the_workers_by_a_name_that_exists():
    rendered = render(SETS["cpu"])
    (address,) = tomllib.loads(rendered.gateway_toml())["servers"]["addresses"]
    service = rendered.get("Service", "-worker")
    assert address == f"dns://{service['metadata']['name']}.voice.svc.cluster.local.:8001"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is False


def test_gateways_find_each_other_also_when_one_ends():
    rendered = render(SETS["cpu"])
    (peers,) = tomllib.loads(rendered.gateway_toml())["listen"]["peers"]
    service = rendered.get("Service", "-gateway-peers")
    (port,) = service["spec"]["ports"]
    assert peers == f"dns://{service['metadata']['name']}.voice.svc.cluster.local.:{port['port']}"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == rendered.get("Service", "-gateway")["spec"]["selector"]
    policy = rendered.get("NetworkPolicy", "-gateway")["spec"]
    pods = [{"podSelector": {"matchLabels": service["spec"]["selector"]}}]
    http = [{"protocol": "TCP", "port": "http"}]
    assert {"ports": http, "from": pods} in policy["ingress"]
    assert {"ports": http, "to": pods} in policy["egress"]


@pytest.mark.parametrize(
    ("values", "servers"),
    [
        ({}, 256),
        ({"worker": {"replicas": 300}}, 301),
        (
            {"worker": {"rollout": {"maxSurge": "25%"}}, "autoscaling": {"kind": "hpa", "maxReplicas": 501}},
            627,
        ),
    ],
)
def test_gateways_use_all_workers_that_there_may_be(values, servers):
    read = tomllib.loads(render(merge(SETS["cpu"], values)).gateway_toml())
    assert read["servers"]["max_servers"] == servers


def test_gateways_fill_a_worker_as_far_as_it_was_measured():
    def most(values):
        return tomllib.loads(render(merge(SETS["cpu"], values)).gateway_toml())["servers"].get("sessions")

    assert most({"worker": {"sessions": 32, "capacity": 12.7}}) == 12
    assert most({"worker": {"capacity": 0.8}}) == 1
    assert most({}) is None


def test_files_of_the_secret_are_those_that_the_settings_name():
    rendered = render(SETS["telephone"])
    read = tomllib.loads(rendered.gateway_toml())
    named = {
        read["security"]["keys_file"],
        read["security"]["token_secret_file"],
        read["twilio"]["auth_token_file"],
    }
    (volume,) = [one for one in rendered.pod("gateway")["volumes"] if one["name"] == "secrets"]
    assert {f"/etc/parley/secrets/{item['path']}" for item in volume["secret"]["items"]} == named


_TAKEOVER = """
import json, sys, tempfile
from pathlib import Path
from parley_gateway.settings import load_settings
given = json.load(sys.stdin)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "gateway.toml"
    file.write_text(given["toml"])
    takeover = load_settings(file, given["environment"]).takeover
print(json.dumps([takeover.store, takeover.keys_file]))
"""


def test_gateways_with_common_keys_and_redis_take_over_sessions():
    rendered = render(SETS["session-takeover"])
    sources = {
        one["name"]: one["valueFrom"] for one in rendered.container("gateway")["env"] if "valueFrom" in one
    }
    assert sources["PARLEY_GATEWAY_TAKEOVER_STORE"] == {
        "secretKeyRef": {"name": "parley-redis", "key": "url"}
    }
    environment = {"PARLEY_GATEWAY_TAKEOVER_STORE": "rediss://:password@redis:6379/0"}
    given = {"toml": rendered.gateway_toml(), "environment": environment}
    store, keys_file = json.loads(run_in_project(_TAKEOVER, given))
    assert store == environment["PARLEY_GATEWAY_TAKEOVER_STORE"]
    (volume,) = [one for one in rendered.pod("gateway")["volumes"] if one["name"] == "secrets"]
    assert keys_file in {f"/etc/parley/secrets/{item['path']}" for item in volume["secret"]["items"]}
    policy = rendered.get("NetworkPolicy", "-gateway")["spec"]
    assert {"ports": [{"protocol": "TCP", "port": 6379}]} in policy["egress"]


def test_a_plain_installation_keeps_sessions_in_a_redis_of_its_own():
    rendered = render(NEEDED)
    secret = {name: base64.b64decode(text) for name, text in rendered.get("Secret", "-redis")["data"].items()}
    url = secret["url"].decode()
    name = rendered.get("Service", "-redis")["metadata"]["name"]
    assert re.fullmatch(rf"redis://:[A-Za-z0-9]{{40}}@{name}\.voice\.svc\.cluster\.local:6379/0", url)
    assert f"requirepass {url.partition('://:')[2].partition('@')[0]}\n" in secret["redis.conf"].decode()
    assert len(base64.b64decode(secret["takeover.keys"])) == 32
    sources = {
        one["name"]: one["valueFrom"] for one in rendered.container("gateway")["env"] if "valueFrom" in one
    }
    for store in ("RATES", "TAKEOVER"):
        reference = sources[f"PARLEY_GATEWAY_{store}_STORE"]["secretKeyRef"]
        assert reference == {"name": rendered.get("Secret", "-redis")["metadata"]["name"], "key": "url"}
    given = {"toml": rendered.gateway_toml(), "environment": {"PARLEY_GATEWAY_TAKEOVER_STORE": url}}
    store, keys_file = json.loads(run_in_project(_TAKEOVER, given))
    assert store == url
    (mount,) = [one for one in rendered.container("gateway")["volumeMounts"] if one["name"] == "redis"]
    (volume,) = [one for one in rendered.pod("gateway")["volumes"] if one["name"] == "redis"]
    assert keys_file in {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}
    policies = {name: rendered.get("NetworkPolicy", f"-{name}")["spec"] for name in ("gateway", "redis")}
    to_redis = {"protocol": "TCP", "port": "redis"}
    assert [rule["ports"] for rule in policies["redis"]["ingress"]] == [[to_redis]]
    assert [to_redis] in [rule["ports"] for rule in policies["gateway"]["egress"]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cpu", "Sessions go on at another gateway when theirs dies"),
        ("eks-production", "The calls of a gateway's pod that dies are lost: with takeover.keys"),
        ("minimal", "There is no Redis. The calls of a gateway's pod that dies are lost"),
    ],
)
def test_the_notes_say_what_happens_to_the_calls_of_a_gateway_that_dies(name, said):
    assert said in render(SETS[name]).notes


def test_redis_alone_keeps_no_sessions():
    rendered = render(SETS["eks-production"])
    names = {one["name"] for one in rendered.container("gateway")["env"]}
    assert "PARLEY_GATEWAY_RATES_STORE" in names
    assert "PARLEY_GATEWAY_TAKEOVER_STORE" not in names
    assert "takeover" not in tomllib.loads(rendered.gateway_toml())


def test_no_secret_is_in_a_specification_or_a_configuration():
    for name in ("telephone", "eks-production", "webrtc-turn"):
        texts = [found for found in render(SETS[name]).objects if found["kind"] != "Secret"]
        for secret in ("AAAAAAAAAAAAAAAAAAAAA", "rediss://", "TURN_SECRET=", "sha256 = "):
            assert secret not in json.dumps(texts)


def test_turn_gets_its_secret_by_a_file_that_only_it_can_read(tmp_path):
    container = render(SETS["webrtc-turn"]).container("turn")
    secret, config, seen = tmp_path / "static-auth-secret", tmp_path / "turnserver.conf", tmp_path / "seen"
    secret.write_text("s3cret %s\n")
    turnserver = tmp_path / "turnserver"
    turnserver.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\n')
    turnserver.chmod(0o700)
    command = [
        re.sub(r"/[a-z/]+/(static-auth-secret|turnserver\.conf)", rf"{tmp_path}/\1", word)
        for word in (*container["command"], *container["args"])
    ]
    subprocess.run(command, check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert config.read_text() == "static-auth-secret=s3cret %s\n"
    assert config.stat().st_mode & 0o077 == 0
    arguments = seen.read_text().splitlines()
    assert arguments[:2] == ["-c", str(config)]
    assert not any("s3cret" in one for one in arguments)
    assert not container.get("env")


@pytest.mark.parametrize("profile", ["tiny", "open", "gpu"])
def test_the_number_of_agents_is_that_of_the_profile(profile):
    base = {"tiny": "minimal", "open": "cpu", "gpu": "single-gpu"}[profile]
    rendered = render(merge(SETS[base], {"worker": {"sessions": 8}}))
    environment = {one["name"]: one.get("value") for one in rendered.container("worker")["env"]}
    folder = ROOT / "model_repository" / "voice_agent"
    config = folder / "config.pbtxt" if profile == "gpu" else folder / "configs" / f"{profile}.pbtxt"
    agents = len(re.findall(r'name: "voice_agent_\d', config.read_text()))
    assert int(environment["PARLEY_VOICE_AGENT_MAX_SESSIONS"]) * agents == 8


def test_models_that_values_name_exist():
    repository = {folder.name for folder in (ROOT / "model_repository").iterdir()}
    weights = tomllib.loads((ROOT / "build" / "checkpoints.toml").read_text())["weights"]
    for values in SETS.values():
        assert set(values.get("worker", {}).get("models", ())) <= repository
        assert set(values.get("weights", {}).get("hub", {}).get("models", ())) <= set(weights)


def test_the_tiny_models_are_found_in_the_image():
    environment = {
        one["name"]: one.get("value") for one in render(SETS["minimal"]).container("worker")["env"]
    }
    assert environment["PARLEY_MODELS_DIR"] == "/opt/parley/models"
    assert "initContainers" not in render(SETS["minimal"]).pod("worker")


def test_weights_are_checked_before_the_server_starts():
    def steps(name):
        return [one["name"] for one in render(SETS[name]).pod("worker")["initContainers"]]

    assert steps("cpu") == ["fetch-weights"]
    assert steps("s3-open") == ["copy-weights", "check-weights"]
    assert steps("cpu-shared-weights") == ["check-weights"]
    assert steps("eks-production") == ["copy-weights", "check-sums"]
    for name in ("cpu", "s3-open", "eks-production"):
        (mount,) = [
            one for one in render(SETS[name]).container("worker")["volumeMounts"] if one["name"] == "weights"
        ]
        assert mount["readOnly"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: None, ""),
        (lambda folder: (folder / "Qwen3" / "config.json").write_text("other"), "FAILED"),
        (lambda folder: (folder / "Qwen3" / "config.json").unlink(), "No such file"),
        (lambda folder: (folder / "Qwen3" / "more.safetensors").touch(), "Qwen3/more.safetensors"),
        (lambda folder: (folder / "more").symlink_to("/etc"), "more"),
    ],
    ids=["nothing", "changed", "removed", "added", "linked"],
)
def test_weights_that_were_changed_removed_or_added_are_refused(tmp_path, change, said):
    models = tmp_path / "models"
    for name in ("Qwen3/config.json", "a folder/a file", ".downloads/part", "lost+found/"):
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).mkdir() if name.endswith("/") else (models / name).write_text(name)
    listed = subprocess.run(
        ["sha256sum", "Qwen3/config.json", "a folder/a file"],
        cwd=models,
        capture_output=True,
        text=True,
        check=True,
    )
    values = merge(SETS["eks-production"], {"weights": {"checksums": listed.stdout}})
    rendered = render(values)
    (tmp_path / "SHA256SUMS").write_text(rendered.get("ConfigMap", "-sums")["data"]["SHA256SUMS"])
    (check,) = [one for one in rendered.pod("worker")["initContainers"] if one["name"] == "check-sums"]
    assert check["workingDir"] == "/var/lib/parley/models"
    change(models)
    script = check["args"][0].replace("/tmp/", f"{tmp_path}/")  # noqa: S108 - in the container
    script = script.replace("/etc/parley/sums", str(tmp_path))
    done = subprocess.run(
        [*check["command"], script], cwd=models, capture_output=True, text=True, check=False
    )
    assert said in done.stdout + done.stderr
    assert bool(said) == bool(done.returncode)


@pytest.mark.parametrize("name", sorted(SETS.keys() - {"gpu-own-command"}))
def test_the_programs_accept_their_command_lines(name):
    rendered = render(SETS[name])
    container = rendered.container("worker")
    before = rendered.pod("worker").get("initContainers", ())
    weights = [one["args"] for one in before if one["name"] in {"fetch-weights", "check-weights"}]
    probe = container["startupProbe"]["exec"]["command"]
    drain = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (probe[0], drain[0]) == ("parley", "parley")
    given = {"parley": [probe[1:], drain[1:]], "launcher": container["args"], "weights": weights}
    run_in_project(_PARSE, {**given, "scripts": str(ROOT / "scripts")})


@pytest.mark.parametrize(
    ("base", "requests", "sessions"),
    [
        ("cpu", {}, 2),
        ("cpu", {"cpu": "500m"}, 2),
        ("cpu", {"cpu": "4"}, 4),
        ("cpu", {"cpu": 5.9}, 4),
        ("cpu", {"cpu": "128"}, 32),
        ("minimal", {"cpu": "1500m"}, 24),
    ],
)
def test_a_worker_accepts_what_its_processors_hold(base, requests, sessions):
    rendered = render(merge(SETS[base], {"worker": {"sessions": None, "resources": {"requests": requests}}}))
    environment = {one["name"]: one.get("value") for one in rendered.container("worker")["env"]}
    assert int(environment["PARLEY_VOICE_AGENT_MAX_SESSIONS"]) * 2 == sessions

"""The sets of values that the chart is rendered with: those of its folder ci, and variations of them."""

from __future__ import annotations

from charts import CHART, merge, read_documents

NEEDED = {
    "secrets": {"existingSecret": "parley-gateway"},
    "networkPolicy": {"weightsCidrs": ["0.0.0.0/0"]},
}


def from_files():
    found = {}
    for file in sorted((CHART / "ci").glob("*-values.yaml")):
        (found[file.name.removesuffix("-values.yaml")],) = read_documents(file.read_text())
    return found


def _varied():
    files = from_files()
    gpu, production, cpu = files["single-gpu"], files["eks-production"], files["cpu"]
    yield (
        "names",
        merge(cpu, {"fullnameOverride": "voice", "nameOverride": "parley", "commonLabels": {"a": "b"}}),
    )
    for name in ("T4", "A10G", "L40S", "H100", "H200"):
        yield f"gpu-{name}", merge(gpu, {"worker": {"gpu": {"class": name}}})
    yield "overprovisioned-gpus", merge(production, {"overprovisioning": {"replicas": 2}})
    yield (
        "overprovisioned-processors",
        merge(cpu, {"overprovisioning": {"replicas": 1}, "worker": {"tolerations": [{"key": "a"}]}}),
    )
    yield (
        "gpu-without-selection",
        merge(gpu, {"worker": {"gpu": {"selectNodes": False, "runtimeClassName": "nvidia"}}}),
    )
    hub = {"source": "hub", "claim": "", "size": "20Gi", "checksums": ""}
    greeter = 'instructions = """\nYou say "{{ hello }}".\n"""\nvoice = "af_heart"\n'
    yield "agents", merge(cpu, {"worker": {"agents": {"greeter": greeter, "clinic-2": 'instructions = "x"'}}})
    yield (
        "calls-claim",
        merge(cpu, {"worker": {"agents": {"greeter": greeter}, "callsClaim": "parley-calls"}}),
    )
    shared = {"STORE": "s3://calls/all", "LIST": "postgresql://parley@db/calls"}
    env = [{"name": f"PARLEY_VOICE_AGENT_CALLS_{name}", "value": value} for name, value in shared.items()]
    egress = [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}, {"port": 5432}]}]
    worker = {"agents": {"greeter": greeter}, "env": env}
    yield "calls-shared", merge(cpu, {"worker": worker, "networkPolicy": {"workerEgress": egress}})
    yield "gpu-hub", merge(gpu, NEEDED, {"weights": hub})
    yield "gpu-ipv6", merge(gpu, {"worker": {"listenAddress": "::"}})
    yield "gpu-own-command", merge(gpu, {"worker": {"models": [], "command": ["/start", "--all"]}})
    yield "gpu-cache-claim", merge(gpu, {"worker": {"cacheClaim": "parley-cache"}})
    # A slice of 40 GB, with the plan for 24.
    mig = {"class": "L4", "selectNodes": False, "resource": "nvidia.com/mig-3g.40gb"}
    yield "mig", merge(gpu, {"worker": {"gpu": mig}})
    yield (
        "own-resources",
        merge(
            production,
            {
                "worker": {
                    "resources": {"requests": {"cpu": "12"}},
                    "shmSize": "6Gi",
                    "sessions": 32,
                    "capacity": 20,
                }
            },
        ),
    )
    yield (
        "no-policies",
        merge(cpu, {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}),
    )
    yield "own-account", merge(cpu, {"serviceAccount": {"create": False, "name": "there"}})
    yield "annotated-account", merge(cpu, {"serviceAccount": {"annotations": {"a": "b"}}})
    yield (
        "placement",
        merge(
            cpu,
            *(
                {
                    part: {
                        "nodeSelector": {"pool": "voice"},
                        "tolerations": [{"key": "voice", "operator": "Exists"}],
                        "priorityClassName": "calls",
                        "podAnnotations": {"a": "b"},
                        "affinity": {"nodeAffinity": {}},
                    }
                }
                for part in ("gateway", "worker")
            ),
        ),
    )
    yield "claims", merge(cpu, {"weights": {"storageClass": "gp3", "size": "10Gi"}})
    yield "filled-claim", merge(cpu, {"weights": {"claim": "weights", "hub": {"existingSecret": "hub"}}})
    yield (
        "s3-open",
        merge(
            cpu, {"weights": {"source": "s3", "s3": {"uri": "s3://bucket/open", "image": "aws-cli:2.31.0"}}}
        ),
    )
    yield "weights-in-image", merge(cpu, {"weights": {"source": "image"}})
    yield (
        "internal-nlb",
        merge(cpu, {"exposure": {"kind": "nlb", "affinity": False, "nlb": {"internal": True}}}),
    )
    yield (
        "other-ingress",
        merge(
            cpu, {"exposure": {"kind": "ingress", "host": "a.example", "ingress": {"controller": "other"}}}
        ),
    )
    yield (
        "webrtc-in-the-network",
        merge(
            cpu,
            {
                "gateway": {"config": {"realtime": {"webrtc": True, "ice_ports": "50000-50999"}}},
                "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
            },
        ),
    )
    yield (
        "turn-elsewhere",
        merge(
            files["webrtc-turn"],
            {"turn": {"serviceAnnotations": {"example/lb": "udp"}}, "imagePullSecrets": ["a"]},
        ),
    )
    yield (
        "adapted-alerts",
        merge(
            production,
            {
                "monitoring": {
                    "rules": {
                        "overrides": {"ParleySlowAnswers": {"for": "20m"}},
                        "disabled": ["ParleyNoAnswers"],
                    }
                },
                "networkPolicy": {"prometheus": {"podLabels": {"app": "prometheus"}}},
            },
        ),
    )
    yield (
        "one-gateway-jwt",
        merge(
            cpu,
            {
                "gateway": {"replicas": 1, "config": {"jwt": {"issuer": "https://login.example"}}},
                "secrets": {"files": ["jwt-key"]},
            },
        ),
    )


SETS = {**from_files(), **dict(_varied())}

"""What every pod of the chart has to satisfy: Kubernetes' restricted standard, and rules of the project."""

from __future__ import annotations

_CAPABILITIES = {"NET_BIND_SERVICE"}
"""The only one that the restricted standard allows to add."""
_PROBE_GRACE_S = 60
_VOLUMES = {"configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "secret"}


def violations(workload):
    """Sentences about a Deployment; empty: it is as it has to be."""
    template = workload["spec"]["template"]
    found = [*_of_pod(template["spec"]), *_of_annotations(template)]
    return [f"{workload['metadata']['name']}: {text}" for text in found]


def _of_annotations(template):
    takes_calls = any("ports" in container for container in template["spec"]["containers"])
    if takes_calls and "karpenter.sh/do-not-disrupt" not in template.get("metadata", {}).get(
        "annotations", {}
    ):
        yield "may be moved by Karpenter, which ends its calls"


def _of_pod(pod):
    security = pod.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        yield "may run as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "has no seccomp profile"
    if pod.get("automountServiceAccountToken") is not False:
        yield "gets a token of its account"
    if shared := [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]:
        yield f"shares with the node: {shared}"
    if "terminationGracePeriodSeconds" not in pod:
        yield "has no grace period of its own"
    yield from _of_volumes(pod.get("volumes", []))
    names = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod.get("initContainers", []) + pod["containers"]:
        yield from (f"{container['name']} {text}" for text in _of_container(container))
        if unknown := {mount["name"] for mount in container.get("volumeMounts", [])} - names:
            yield f"{container['name']} mounts what there is not: {unknown}"
    for container in pod["containers"]:
        takes_calls = "ports" in container
        if takes_calls and (missing := {"startupProbe", "readinessProbe", "lifecycle"} - set(container)):
            yield f"{container['name']} lacks {sorted(missing)}"
        yield from (f"{container['name']} {text}" for text in _of_probes(container))


def _of_probes(container):
    """A failed probe runs preStop too, and would wait for calls that there cannot be."""
    for name in ("startupProbe", "livenessProbe"):
        probe = container.get(name)
        if probe and not 0 < probe.get("terminationGracePeriodSeconds", 0) <= _PROBE_GRACE_S:
            yield f"waits for calls after its {name} has failed"


def _of_volumes(volumes):
    for volume in volumes:
        (kind,) = set(volume) - {"name"}
        if kind not in _VOLUMES:
            yield f"has a volume of the kind {kind}"
        if kind == "emptyDir" and "sizeLimit" not in volume[kind]:
            yield f"has a volume without a limit: {volume['name']}"


def _of_container(container):
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
        yield "may gain privileges"
    if not security.get("readOnlyRootFilesystem"):
        yield "may write its image"
    capabilities = security.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", [])) - _CAPABILITIES:
        yield "has capabilities"
    resources = container.get("resources", {})
    for kind, name in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
        if name not in resources.get(kind, {}):
            yield f"has no {name} in {kind}"
    if "cpu" in resources.get("limits", {}):
        yield "is throttled, which is heard as gaps"
    image = container["image"]
    if image.endswith(":latest") or not (":" in image.rpartition("/")[2] or "@" in image):
        yield f"has an image without a version: {image}"
    for variable in container.get("env", []):
        if "SECRET" in variable["name"] and "value" in variable:
            yield f"has the secret {variable['name']} in its specification"

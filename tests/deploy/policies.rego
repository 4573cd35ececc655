# What every Deployment of the chart has to satisfy: Kubernetes' restricted standard, and rules of the project. The input is
# the Deployment; each member of `deny` is a sentence. Conftest and Gatekeeper read it, too.
package parley

import rego.v1

pod := input.spec.template.spec

containers := array.concat(object.get(pod, "initContainers", []), pod.containers)

takes_calls if {
	some container in pod.containers
	container.ports
}

deny contains "may run as root" if not runs_as_a_user

runs_as_a_user if {
	pod.securityContext.runAsNonRoot
	pod.securityContext.runAsUser > 0
}

deny contains "has no seccomp profile" if object.get(pod, ["securityContext", "seccompProfile", "type"], "") != "RuntimeDefault"

deny contains "gets a token of its account" if object.get(pod, "automountServiceAccountToken", true)

deny contains sprintf("shares %s with the node", [name]) if {
	some name in ["hostNetwork", "hostPID", "hostIPC"]
	pod[name]
}

deny contains "has no grace period of its own" if not "terminationGracePeriodSeconds" in object.keys(pod)

deny contains "may be moved by Karpenter, which ends its calls" if {
	takes_calls
	annotations := object.get(input.spec.template, ["metadata", "annotations"], {})
	not "karpenter.sh/do-not-disrupt" in object.keys(annotations)
}

volume_kinds := {"configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "secret"}

deny contains sprintf("has a volume of the kind %s", [kind]) if {
	some volume in pod.volumes
	some kind in object.keys(volume) - (volume_kinds | {"name"})
}

deny contains sprintf("has a volume without a limit: %s", [volume.name]) if {
	some volume in pod.volumes
	volume.emptyDir
	not volume.emptyDir.sizeLimit
}

deny contains sprintf("%s mounts what there is not: %s", [container.name, mount.name]) if {
	some container in containers
	some mount in container.volumeMounts
	not mount.name in {volume.name | some volume in pod.volumes}
}

deny contains sprintf("%s may gain privileges", [container.name]) if {
	some container in containers
	object.get(container, ["securityContext", "allowPrivilegeEscalation"], true)
}

deny contains sprintf("%s is privileged", [container.name]) if {
	some container in containers
	container.securityContext.privileged
}

deny contains sprintf("%s may write its image", [container.name]) if {
	some container in containers
	not object.get(container, ["securityContext", "readOnlyRootFilesystem"], false)
}

# The only capability that the restricted standard allows to add.
deny contains sprintf("%s has capabilities", [container.name]) if {
	some container in containers
	capabilities := object.get(container, ["securityContext", "capabilities"], {})
	not drops_all_but_ports(capabilities)
}

drops_all_but_ports(capabilities) if {
	capabilities.drop == ["ALL"]
	{name | some name in object.get(capabilities, "add", [])} - {"NET_BIND_SERVICE"} == set()
}

deny contains sprintf("%s has no %s in %s", [container.name, needed[1], needed[0]]) if {
	some container in containers
	some needed in [["requests", "cpu"], ["requests", "memory"], ["limits", "memory"]]
	object.get(container, ["resources", needed[0], needed[1]], "") == ""
}

deny contains sprintf("%s is throttled, which is heard as gaps", [container.name]) if {
	some container in containers
	container.resources.limits.cpu
}

deny contains sprintf("%s has an image without a version: %s", [container.name, container.image]) if {
	some container in containers
	not has_version(container.image)
}

has_version(image) if {
	regex.match(`[^/](:[A-Za-z0-9_][A-Za-z0-9_.-]*|@sha256:[0-9a-f]{64})$`, image)
	not endswith(image, ":latest")
}

deny contains sprintf("%s has the secret %s in its spec", [container.name, variable.name]) if {
	some container in containers
	some variable in container.env
	contains(variable.name, "SECRET")
	variable.value
}

deny contains sprintf("%s lacks %s", [container.name, name]) if {
	some container in pod.containers
	container.ports
	some name in ["startupProbe", "readinessProbe", "lifecycle"]
	not container[name]
}

# A failed probe runs preStop, too, and would wait for calls that there cannot be.
deny contains sprintf("%s waits for calls after a failed %s", [container.name, name]) if {
	some container in pod.containers
	some name in ["startupProbe", "livenessProbe"]
	container[name]
	not object.get(container[name], "terminationGracePeriodSeconds", 3600) <= 60
}

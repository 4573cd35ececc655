{{- define "parley.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Labels of an object: dict "root" $ "component" NAME. */ -}}
{{- define "parley.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: parley
{{ include "parley.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Labels that select the pods of a component; they never change. */ -}}
{{- define "parley.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* Labels of a component's pods; without versions, which would replace pods that are the same. */ -}}
{{- define "parley.podLabels" -}}
app.kubernetes.io/part-of: parley
{{ include "parley.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* An image: dict "root" $ "image" VALUES "default" REPOSITORY. */ -}}
{{- define "parley.image" -}}
{{- $repository := include "parley.registered" (dict "root" .root "name" (default .default .image.repository)) -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{- /* A name of an image with the registry: dict "root" $ "name" NAME. */ -}}
{{- define "parley.registered" -}}
{{- if .root.Values.imageRegistry }}{{ trimSuffix "/" .root.Values.imageRegistry }}/{{ end }}{{ .name -}}
{{- end -}}

{{- define "parley.serviceAccount" -}}
{{- default (include "parley.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "parley.secret" -}}
{{- default (printf "%s-gateway" (include "parley.fullname" .)) .Values.secrets.existingSecret -}}
{{- end -}}

{{- define "parley.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.runAsUser }}
runAsGroup: {{ int64 .Values.runAsUser }}
fsGroup: {{ int64 .Values.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "parley.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Zones first, then nodes: dict "root" $ "component" NAME. */ -}}
{{- define "parley.spread" -}}
{{- range tuple "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "parley.selector" $ | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end -}}

{{- /* The GPU class as JSON, with its memory plan as `plan`; an empty object without a GPU. */ -}}
{{- define "parley.gpu" -}}
{{- $class := .Values.worker.gpu.class -}}
{{- if eq $class "none" -}}
{}
{{- else -}}
{{- $plan := get (.Files.Get "files/gpu-plans.json" | fromJson) $class -}}
{{- set (get (.Files.Get "files/gpu-classes.yaml" | fromYaml) $class) "plan" $plan | toJson -}}
{{- end -}}
{{- end -}}

{{- /* What callers get from the worker's models, and what they do not: an object with the lists `got` and `missing`, and
`models`. A feature is missing where the GPU has no memory for one of its models, or where its weights have to be
made, which the source hub cannot. */ -}}
{{- define "parley.features" -}}
{{- $worker := .Values.worker -}}
{{- $without := list -}}
{{- with (include "parley.gpu" . | fromJson).plan }}{{ $without = .without }}{{ end -}}
{{- $isFetched := and (eq .Values.weights.source "hub") (eq $worker.profile "gpu") -}}
{{- $got := list -}}
{{- $missing := list -}}
{{- $models := list -}}
{{- range get (.Files.Get "files/features.json" | fromJson) $worker.profile -}}
{{- $isThere := not (and $isFetched .prepare) -}}
{{- range .models -}}
{{- if or (has . $without) (and $worker.models (not (has . $worker.models))) }}{{ $isThere = false }}{{ end -}}
{{- end -}}
{{- if $isThere -}}
{{- $got = append $got .gets -}}
{{- $models = concat $models .models -}}
{{- else -}}
{{- $missing = append $missing .gets -}}
{{- end -}}
{{- end -}}
{{- dict "got" $got "missing" $missing "models" ($worker.models | default (uniq $models)) | toJson -}}
{{- end -}}

{{- /* Processes of voice_agent in the worker's profile: the instance groups of its configuration. */ -}}
{{- define "parley.instances" -}}
{{- (get (.Files.Get "files/sessions.json" | fromJson) .Values.worker.profile).instances | int -}}
{{- end -}}

{{- /* Sessions that a worker accepts: those of values, else of the GPU's memory plan, else by the processors that its pod
is guaranteed. */ -}}
{{- define "parley.sessions" -}}
{{- $gpu := include "parley.gpu" . | fromJson -}}
{{- $instances := include "parley.instances" . | int -}}
{{- $planned := $instances -}}
{{- if $gpu.plan -}}
{{- $planned = mul $instances (int $gpu.plan.sessions) -}}
{{- else -}}
{{- $row := get (.Files.Get "files/sessions.json" | fromJson) .Values.worker.profile -}}
{{- $cpu := toString (include "parley.worker.resources" . | fromJson).requests.cpu -}}
{{- $cores := float64 (trimSuffix "m" $cpu) -}}
{{- if hasSuffix "m" $cpu }}{{ $cores = divf $cores 1000 }}{{ end -}}
{{- $total := min (int $row.most) (floor (mulf $cores (float64 $row.per_core)) | int) -}}
{{- $planned = mul $instances (max 1 (div $total $instances)) -}}
{{- end -}}
{{- .Values.worker.sessions | default $planned | int -}}
{{- end -}}

{{- /* Sessions of a worker that autoscaling aims at, rounded down to a tenth. */ -}}
{{- define "parley.sessionsWanted" -}}
{{- $held := .Values.worker.capacity | default (include "parley.sessions" .) -}}
{{- divf (floor (mulf (float64 $held) (float64 .Values.worker.targetUtilization) 10)) 10 -}}
{{- end -}}

{{- /* Calls of a gateway that autoscaling aims at, rounded down to a tenth. */ -}}
{{- define "parley.callsWanted" -}}
{{- divf (floor (mulf (float64 .Values.gateway.calls) (float64 .Values.gateway.autoscaling.targetUtilization) 10)) 10 -}}
{{- end -}}

{{- /* Whether the release has a Redis of its own: "true" or empty. */ -}}
{{- define "parley.redis.isOwn" -}}
{{- if and .Values.gateway.redis.install (not .Values.gateway.redis.existingSecret) }}true{{ end -}}
{{- end -}}

{{- /* The URL of Redis, as a reference to a key of a Secret; empty: there is none. */ -}}
{{- define "parley.redis.url" -}}
{{- $redis := .Values.gateway.redis -}}
{{- if $redis.existingSecret -}}
{name: {{ $redis.existingSecret }}, key: {{ $redis.key }}}
{{- else if include "parley.redis.isOwn" . -}}
{name: {{ include "parley.fullname" . }}-redis, key: url}
{{- end -}}
{{- end -}}

{{- /* The file of the keys that sessions in Redis are encrypted with; empty: none are kept. */ -}}
{{- define "parley.takeoverKeys" -}}
{{- if has "takeover.keys" .Values.secrets.files -}}
/etc/parley/secrets/takeover.keys
{{- else if include "parley.redis.isOwn" . -}}
/etc/parley/redis/takeover.keys
{{- end -}}
{{- end -}}

{{- /* Whether a balancer of AWS finds the gateway's pods by their addresses: "true" or empty. */ -}}
{{- define "parley.isAwsBalancer" -}}
{{- $exposure := .Values.exposure -}}
{{- if or (eq $exposure.kind "nlb") (and (eq $exposure.kind "ingress") (eq $exposure.ingress.controller "alb")) -}}
true
{{- end -}}
{{- end -}}

{{- define "parley.gateway.preStop" -}}
{{- .Values.gateway.preStopSeconds | default (ternary 60 15 (eq (include "parley.isAwsBalancer" .) "true")) | int -}}
{{- end -}}

{{- /* Pods of workers that may take calls at once: with those that a new version starts first. */ -}}
{{- define "parley.workersAtOnce" -}}
{{- $pods := ternary .Values.worker.replicas .Values.autoscaling.maxReplicas (eq .Values.autoscaling.kind "none") | int -}}
{{- $surge := toString .Values.worker.rollout.maxSurge -}}
{{- $extra := int $surge -}}
{{- if hasSuffix "%" $surge }}{{ $extra = mulf $pods (divf (trimSuffix "%" $surge | float64) 100) | ceil | int }}{{ end -}}
{{- add $pods $extra -}}
{{- end -}}

{{- define "parley.workerTls.folder" -}}/etc/parley/worker-tls{{- end -}}

{{- define "parley.workerTls.mount" -}}
- {name: worker-tls, mountPath: {{ include "parley.workerTls.folder" . }}, readOnly: true}
{{- end -}}

{{- /* A volume with a certificate: the name of its Secret. */ -}}
{{- define "parley.workerTls.volume" -}}
- name: worker-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      {{- range tuple "tls.crt" "tls.key" "ca.crt" }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end -}}

{{- /* The name of the workers' Service, which their certificate has, too. */ -}}
{{- define "parley.worker.host" -}}
{{- printf "%s-worker.%s.svc.%s" (include "parley.fullname" .) .Release.Namespace (trimSuffix "." .Values.clusterDomain) -}}
{{- end -}}

{{- define "parley.worker.startup" -}}
{{- .Values.worker.startupSeconds | default (ternary 900 1920 (eq .Values.worker.gpu.class "none")) | int -}}
{{- end -}}

{{- define "parley.gateway.leastGrace" -}}
{{- add (include "parley.gateway.preStop" . | int) .Values.drain.seconds .Values.gateway.exitSeconds 15 -}}
{{- end -}}

{{- define "parley.worker.leastGrace" -}}
{{- add .Values.drain.seconds .Values.worker.exitSeconds 15 -}}
{{- end -}}

{{- define "parley.gateway.grace" -}}
{{- .Values.gateway.gracePeriodSeconds | default (include "parley.gateway.leastGrace" .) | int -}}
{{- end -}}

{{- define "parley.worker.grace" -}}
{{- .Values.worker.gracePeriodSeconds | default (include "parley.worker.leastGrace" .) | int -}}
{{- end -}}

{{- /* https where the gateway's pods have the certificate. */ -}}
{{- define "parley.scheme" -}}
{{- if has "tls.crt" .Values.secrets.files }}https{{ else }}http{{ end -}}
{{- end -}}

{{- /* Whether clients use TLS, at the pods or before them: "true" or empty. */ -}}
{{- define "parley.isPublicTls" -}}
{{- $exposure := .Values.exposure -}}
{{- if kindIs "bool" $exposure.tls -}}
{{- if $exposure.tls }}true{{ end -}}
{{- else if or (has "tls.crt" .Values.secrets.files) (and (eq $exposure.kind "nlb") $exposure.nlb.certificateArn) (and (eq $exposure.kind "ingress") (or $exposure.ingress.tlsSecret (eq $exposure.ingress.controller "alb"))) (eq $exposure.kind "gateway") -}}
true
{{- end -}}
{{- end -}}

{{- /* The gateway's settings as JSON, without what `gateway.config` adds. */ -}}
{{- define "parley.gateway.own" -}}
{{- $values := .Values -}}
{{- $files := $values.secrets.files -}}
{{- $folder := "/etc/parley/secrets" -}}
{{- $peers := printf "dns://%s-gateway-peers.%s.svc.%s.:%d" (include "parley.fullname" .) .Release.Namespace (trimSuffix "." $values.clusterDomain) (int $values.gateway.ports.http) -}}
{{- $listen := dict "peers" (list $peers) "metrics_port" (int $values.gateway.ports.metrics) "drain_s" (int $values.drain.seconds) -}}
{{- if has "tls.crt" $files -}}
{{- $_ := set $listen "certificate" (printf "%s/tls.crt" $folder) -}}
{{- $_ := set $listen "key" (printf "%s/tls.key" $folder) -}}
{{- end -}}
{{- if $values.exposure.host -}}
{{- $_ := set $listen "public_url" (printf "%s://%s" (ternary "https" "http" (eq (include "parley.isPublicTls" .) "true")) $values.exposure.host) -}}
{{- end -}}
{{- $security := dict "insecure_allow_anonymous" $values.gateway.allowAnonymous "trusted_proxies" $values.exposure.trustedProxies -}}
{{- if has "keys.toml" $files }}{{ $_ := set $security "keys_file" (printf "%s/keys.toml" $folder) }}{{ end -}}
{{- if has "token-secret" $files }}{{ $_ := set $security "token_secret_file" (printf "%s/token-secret" $folder) }}{{ end -}}
{{- $realtime := dict "webrtc" $values.turn.enabled -}}
{{- if $values.turn.enabled }}{{ $_ := set $realtime "ice_networks" (list $values.turn.peerCidr) }}{{ end -}}
{{- /* The last dot spares lookups of the name in the pod's search domains. */ -}}
{{- $servers := dict "addresses" (list (printf "dns://%s.:8001" (include "parley.worker.host" .))) "max_servers" (max 256 (include "parley.workersAtOnce" . | int)) -}}
{{- if $values.workerTls.workerSecret -}}
{{- $tls := include "parley.workerTls.folder" . -}}
{{- $_ := set $servers "tls" (dict "ca_file" (printf "%s/ca.crt" $tls) "cert_file" (printf "%s/tls.crt" $tls) "key_file" (printf "%s/tls.key" $tls)) -}}
{{- end -}}
{{- if $values.worker.capacity }}{{ $_ := set $servers "sessions" (max 1 (floor $values.worker.capacity | int)) }}{{ end -}}
{{- $own := dict "listen" $listen "security" $security "realtime" $realtime
  "servers" $servers
  "calls" (dict "limit" (int $values.gateway.calls))
  "uploads" (dict "folder" "/tmp") -}}
{{- if has "jwt-key" $files }}{{ $_ := set $own "jwt" (dict "key_file" (printf "%s/jwt-key" $folder)) }}{{ end -}}
{{- if has "twilio-auth-token" $files }}{{ $_ := set $own "twilio" (dict "auth_token_file" (printf "%s/twilio-auth-token" $folder)) }}{{ end -}}
{{- with include "parley.takeoverKeys" . }}{{ $_ := set $own "takeover" (dict "keys_file" .) }}{{ end -}}
{{- toJson $own -}}
{{- end -}}

{{- /* A value in TOML. JSON's strings, numbers, booleans and lists are TOML already. */ -}}
{{- define "parley.toml" -}}
{{- if kindIs "map" . -}}
{ {{- $first := true -}}
{{- range $name, $value := . }}{{ if not $first }},{{ end }} {{ $name | toJson }} = {{ include "parley.toml" $value }}{{ $first = false }}{{ end }} }
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}

{{- define "parley.gateway.toml" -}}
{{- $all := mergeOverwrite (include "parley.gateway.own" . | fromJson) (deepCopy .Values.gateway.config) -}}
{{- range $section, $fields := $all }}
[{{ $section }}]
{{- range $name, $value := $fields }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "parley.toml" $value }}
{{- end }}
{{- end }}
{{ end }}
{{- end -}}

{{- /* The containers' ports are the images' own unless values change them; the environment counts over the file. */ -}}
{{- define "parley.gateway.listenEnvironment" -}}
- name: PARLEY_GATEWAY_LISTEN_HOST
  value: {{ .Values.gateway.listenAddress | quote }}
- name: PARLEY_GATEWAY_LISTEN_PORT
  value: {{ int .Values.gateway.ports.http | quote }}
- name: PARLEY_GATEWAY_LISTEN_HEALTH_PORT
  value: {{ int .Values.gateway.ports.health | quote }}
{{- end -}}

{{- define "parley.scratch" -}}
emptyDir:
  sizeLimit: {{ . }}
{{- end -}}

{{- /* Resources of a worker as JSON: those of its GPU class, and over them those of values. */ -}}
{{- define "parley.worker.resources" -}}
{{- $worker := .Values.worker -}}
{{- $gpu := include "parley.gpu" . | fromJson -}}
{{- $resources := mergeOverwrite (dict "requests" (dict "cpu" "2" "memory" "6Gi") "limits" (dict "memory" "8Gi")) (deepCopy (default dict $gpu.resources)) (deepCopy $worker.resources) -}}
{{- if ne $worker.gpu.class "none" }}{{ $_ := set $resources.limits $worker.gpu.resource 1 }}{{ end -}}
{{- toJson $resources -}}
{{- end -}}

{{- define "parley.worker.image" -}}
{{- $default := ternary "parley/worker-cpu" "parley/worker-gpu" (eq .Values.worker.gpu.class "none") -}}
{{- include "parley.image" (dict "root" . "image" .Values.worker.image "default" $default) -}}
{{- end -}}

{{- /* Where workers may run: fields of a pod. */ -}}
{{- define "parley.worker.placement" -}}
{{- $worker := .Values.worker -}}
{{- $gpu := include "parley.gpu" . | fromJson -}}
{{- $hasGpu := ne $worker.gpu.class "none" -}}
{{- $selector := deepCopy $worker.nodeSelector -}}
{{- if and $hasGpu $worker.gpu.selectNodes -}}
{{- $_ := set $selector "karpenter.k8s.aws/instance-gpu-name" $gpu.gpuName -}}
{{- end -}}
{{- with $selector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or $hasGpu $worker.tolerations }}
tolerations:
  {{- if $hasGpu }}
  - {key: {{ $worker.gpu.resource }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- with $worker.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with $worker.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

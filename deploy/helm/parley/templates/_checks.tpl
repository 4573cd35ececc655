{{- /* What a schema cannot say: values that contradict each other. Every message names the values. */ -}}
{{- define "parley.check" -}}
{{- $values := .Values -}}
{{- $files := $values.secrets.files -}}
{{- range $component := tuple "gateway" "worker" -}}
{{- $least := include (printf "parley.%s.leastGrace" $component) $ | int -}}
{{- $grace := include (printf "parley.%s.grace" $component) $ | int -}}
{{- if lt $grace $least -}}
{{- $before := ternary (printf "%s s before SIGTERM + " (include "parley.gateway.preStop" $)) "" (eq $component "gateway") -}}
{{- fail (printf "%s.gracePeriodSeconds is %d; calls that may last %d s need at least %d (%sdrain.seconds + %s.exitSeconds + 15)" $component $grace (int $values.drain.seconds) $least $before $component) -}}
{{- end -}}
{{- end -}}
{{- if gt (int $values.drain.moveSeconds) (int $values.drain.seconds) -}}
{{- fail (printf "drain.moveSeconds is %d; it must not be above drain.seconds (%d)" (int $values.drain.moveSeconds) (int $values.drain.seconds)) -}}
{{- end -}}
{{- include "parley.check.images" . -}}
{{- include "parley.check.secrets" . -}}
{{- include "parley.check.gateway" . -}}
{{- include "parley.check.worker" . -}}
{{- include "parley.check.weights" . -}}
{{- include "parley.check.exposure" . -}}
{{- end -}}

{{- define "parley.check.images" -}}
{{- range $part := tuple "gateway" "worker" "weights" -}}
{{- if eq (get $.Values $part).image.tag "latest" -}}
{{- fail (printf "%s.image.tag is latest: pods of one release could run different versions; name one, or a digest" $part) -}}
{{- end -}}
{{- end -}}
{{- range $name, $image := dict "weights.s3.image" .Values.weights.s3.image "turn.image" .Values.turn.image "gateway.redis.image" .Values.gateway.redis.image -}}
{{- if and $image (or (hasSuffix ":latest" $image) (not (regexMatch "(:[A-Za-z0-9_][A-Za-z0-9_.-]*|@sha256:[0-9a-f]{64})$" $image))) -}}
{{- fail (printf "%s is %s: name a version, NAME:TAG or NAME@sha256:DIGEST, and not latest" $name $image) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "parley.check.secrets" -}}
{{- $secrets := .Values.secrets -}}
{{- $files := $secrets.files -}}
{{- $given := 0 -}}
{{- if $secrets.existingSecret }}{{ $given = add1 $given }}{{ end -}}
{{- if $secrets.data }}{{ $given = add1 $given }}{{ end -}}
{{- if $secrets.externalSecret.enabled }}{{ $given = add1 $given }}{{ end -}}
{{- if and $files (eq (int $given) 0) -}}
{{- fail (printf "secrets.files names %s: say where they are with secrets.existingSecret, secrets.externalSecret or secrets.data, or empty the list" (join ", " $files)) -}}
{{- end -}}
{{- if gt (int $given) 1 -}}
{{- fail "secrets: use only one of existingSecret, data and externalSecret" -}}
{{- end -}}
{{- if and $secrets.externalSecret.enabled (not $secrets.externalSecret.store) -}}
{{- fail "secrets.externalSecret.store is empty: name the store" -}}
{{- end -}}
{{- if $secrets.data -}}
{{- range $files -}}
{{- if not (hasKey $secrets.data .) -}}
{{- fail (printf "secrets.files names %s, and secrets.data has no %s" . .) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $secrets.data -}}
{{- if not (has $name $files) -}}
{{- fail (printf "secrets.data has %s, and secrets.files does not name it" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne (has "tls.crt" $files) (has "tls.key" $files) -}}
{{- fail "secrets.files needs both tls.crt and tls.key, or neither" -}}
{{- end -}}
{{- end -}}

{{- define "parley.check.gateway" -}}
{{- $gateway := .Values.gateway -}}
{{- $files := .Values.secrets.files -}}
{{- $authenticated := or (has "keys.toml" $files) (has "jwt-key" $files) -}}
{{- if and (not $authenticated) (not $gateway.allowAnonymous) -}}
{{- fail "no authentication is configured: add keys.toml or jwt-key to secrets.files, or set gateway.allowAnonymous for a network that no one else reaches" -}}
{{- end -}}
{{- if and $authenticated $gateway.allowAnonymous -}}
{{- fail "gateway.allowAnonymous is true although secrets.files has keys: keys would protect nothing" -}}
{{- end -}}
{{- if and (has "jwt-key" $files) (not (dig "jwt" "issuer" "" $gateway.config)) -}}
{{- fail "secrets.files has jwt-key: say in gateway.config.jwt.issuer who issues the tokens" -}}
{{- end -}}
{{- $most := ternary $gateway.replicas $gateway.autoscaling.maxReplicas (eq $gateway.autoscaling.kind "none") | int -}}
{{- if and $authenticated (gt $most 1) (not (has "token-secret" $files)) -}}
{{- fail (printf "%d gateways need a common token-secret: add it to secrets.files (head -c 32 /dev/urandom | base64)" $most) -}}
{{- end -}}
{{- if and (has "takeover.keys" $files) (not (include "parley.redis.url" .)) -}}
{{- fail "secrets.files has takeover.keys: name the Secret of the Redis that keeps the sessions in gateway.redis.existingSecret, or set gateway.redis.install" -}}
{{- end -}}
{{- if gt (int $gateway.autoscaling.minReplicas) (int $gateway.autoscaling.maxReplicas) -}}
{{- fail (printf "gateway.autoscaling.minReplicas is %d, above maxReplicas (%d)" (int $gateway.autoscaling.minReplicas) (int $gateway.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- $preStop := include "parley.gateway.preStop" . | int -}}
{{- if and (include "parley.isAwsBalancer" .) (lt $preStop 60) -}}
{{- fail (printf "gateway.preStopSeconds is %d; a balancer of AWS may send calls for a minute after a pod was deleted: set at least 60" $preStop) -}}
{{- end -}}
{{- $ports := $gateway.ports -}}
{{- if lt (len (uniq (list (int $ports.http) (int $ports.health) (int $ports.metrics)))) 3 -}}
{{- fail "gateway.ports: http, health and metrics must differ" -}}
{{- end -}}
{{- $own := dict
  "listen" (dict "host" "gateway.listenAddress" "port" "gateway.ports.http" "health_port" "gateway.ports.health" "metrics_port" "gateway.ports.metrics" "drain_s" "drain.seconds" "peers" "the gateways of this release" "certificate" "secrets.files" "key" "secrets.files" "instance" "the pod's name")
  "servers" (dict "addresses" "the workers of this release" "sessions" "worker.capacity" "max_servers" "autoscaling.maxReplicas and worker.replicas" "tls" "workerTls")
  "calls" (dict "limit" "gateway.calls")
  "uploads" (dict "folder" "gateway.tmpSize")
  "rates" (dict "store" "gateway.redis")
  "security" (dict "insecure_allow_anonymous" "gateway.allowAnonymous" "keys_file" "secrets.files" "token_secret_file" "secrets.files" "trusted_proxies" "exposure.trustedProxies")
  "jwt" (dict "key_file" "secrets.files")
  "takeover" (dict "store" "gateway.redis" "keys_file" "secrets.files")
  "twilio" (dict "auth_token_file" "secrets.files") -}}
{{- range $section, $fields := $gateway.config -}}
{{- range $name, $_ := $fields -}}
{{- with dig $section $name "" $own -}}
{{- fail (printf "gateway.config.%s.%s is set by the chart: see %s" $section $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "parley.check.worker" -}}
{{- $worker := .Values.worker -}}
{{- $sessions := include "parley.sessions" . | int -}}
{{- $instances := include "parley.instances" . | int -}}
{{- if ne (mod $sessions $instances) 0 -}}
{{- fail (printf "worker.sessions is %d; the profile %s needs a multiple of %d, the processes of voice_agent" $sessions $worker.profile $instances) -}}
{{- end -}}
{{- if and $worker.capacity (gt (float64 $worker.capacity) (float64 $sessions)) -}}
{{- fail (printf "worker.capacity is %v; a worker accepts %d sessions (worker.sessions)" $worker.capacity $sessions) -}}
{{- end -}}
{{- if and (eq $worker.profile "gpu") (eq $worker.gpu.class "none") -}}
{{- fail "worker.profile gpu needs worker.gpu.class: T4, L4, A10G, L40S, H100 or H200" -}}
{{- end -}}
{{- if and (ne $worker.profile "gpu") (ne $worker.gpu.class "none") -}}
{{- fail (printf "worker.gpu.class is %s, and the profile %s uses no GPU" $worker.gpu.class $worker.profile) -}}
{{- end -}}
{{- with (include "parley.gpu" . | fromJson).plan -}}
{{- $planned := mul $instances (int .sessions) -}}
{{- if gt $sessions (int $planned) -}}
{{- fail (printf "worker.sessions is %d; the memory plan of the class %s has %d" $sessions $worker.gpu.class $planned) -}}
{{- end -}}
{{- range .without -}}
{{- if has . $worker.models -}}
{{- fail (printf "worker.models names %s, for which a GPU of the class %s has no memory beside the other models" . $worker.gpu.class) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString $worker.rollout.maxSurge) "0") (eq (toString $worker.rollout.maxUnavailable) "0") -}}
{{- fail "worker.rollout: maxSurge and maxUnavailable are both 0, so no pod could ever be replaced" -}}
{{- end -}}
{{- if and $worker.voices.claim $worker.voices.uri -}}
{{- fail "worker.voices: use only one of claim and uri" -}}
{{- end -}}
{{- if and $worker.voices.uri .Values.networkPolicy.enabled (not .Values.networkPolicy.weightsCidrs) -}}
{{- fail "worker.voices.uri is in S3, and networkPolicy.weightsCidrs is empty: name the networks that workers may reach with port 443" -}}
{{- end -}}
{{- $named := dict -}}
{{- range $worker.env -}}
{{- if or .value .valueFrom -}}
{{- $_ := set $named .name true -}}
{{- end -}}
{{- end -}}
{{- $isListed := hasKey $named "PARLEY_VOICE_AGENT_CALLS_LIST" -}}
{{- $isStored := hasKey $named "PARLEY_VOICE_AGENT_CALLS_STORE" -}}
{{- if and $isStored (not $isListed) (not $worker.callsClaim) -}}
{{- fail "worker.env names a store of calls and no PARLEY_VOICE_AGENT_CALLS_LIST, and worker.callsClaim is empty: the list of calls would go with its pod, and nothing would delete their files" -}}
{{- end -}}
{{- if and $isListed (not $isStored) -}}
{{- fail "worker.env names a list of calls, and no PARLEY_VOICE_AGENT_CALLS_STORE: their files would go with their pods" -}}
{{- end -}}
{{- if and $isStored .Values.networkPolicy.enabled (not .Values.networkPolicy.workerEgress) -}}
{{- fail "worker.env names a store of calls, and networkPolicy.workerEgress is empty: name the networks of the store and of the list that workers may reach" -}}
{{- end -}}
{{- if ne (empty .Values.workerTls.workerSecret) (empty .Values.workerTls.gatewaySecret) -}}
{{- fail "workerTls: workerSecret and gatewaySecret are set together, because workers demand a certificate of gateways" -}}
{{- end -}}
{{- if and .Values.workerTls.workerSecret $worker.command -}}
{{- fail "workerTls.workerSecret is set, and worker.command replaces the program that reads it: give the command TLS itself" -}}
{{- end -}}
{{- $pods := include "parley.workersAtOnce" . | int -}}
{{- if gt $pods 1024 -}}
{{- fail (printf "there may be %d workers at once, and a gateway uses at most 1024: install the chart several times, as cells" $pods) -}}
{{- end -}}
{{- $scaling := .Values.autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "autoscaling.minReplicas is %d, above maxReplicas (%d)" (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.kind "keda") (gt (int $scaling.keda.fallbackReplicas) (int $scaling.maxReplicas)) -}}
{{- fail (printf "autoscaling.keda.fallbackReplicas is %d, above maxReplicas (%d)" (int $scaling.keda.fallbackReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{- define "parley.check.weights" -}}
{{- $weights := .Values.weights -}}
{{- $profile := .Values.worker.profile -}}
{{- if and (eq $profile "tiny") (ne $weights.source "image") -}}
{{- fail (printf "weights.source is %s; the weights of the profile tiny are in the image: set it to image" $weights.source) -}}
{{- end -}}
{{- if and (eq $weights.source "volume") (not $weights.claim) -}}
{{- fail "weights.source is volume: name the claim in weights.claim" -}}
{{- end -}}
{{- if eq $weights.source "s3" -}}
{{- if not $weights.s3.uri }}{{ fail "weights.source is s3: set weights.s3.uri, such as s3://BUCKET/PREFIX" }}{{ end -}}
{{- if not $weights.s3.image }}{{ fail "weights.source is s3: set weights.s3.image to an image with the command aws" }}{{ end -}}
{{- end -}}
{{- if and (has $weights.source (list "hub" "s3")) .Values.networkPolicy.enabled (not .Values.networkPolicy.weightsCidrs) -}}
{{- fail (printf "weights.source is %s, and networkPolicy.weightsCidrs is empty: name the networks that workers may reach with port 443 for as long as they run, such as [\"0.0.0.0/0\"] for the Internet; or fill a volume, and use the source volume" $weights.source) -}}
{{- end -}}
{{- if and (has $weights.source (list "s3" "volume")) (eq $profile "gpu") (not $weights.checksums) -}}
{{- fail (printf "weights.source is %s with the profile gpu: put the output of sha256sum into weights.checksums" $weights.source) -}}
{{- end -}}
{{- end -}}

{{- define "parley.check.exposure" -}}
{{- $exposure := .Values.exposure -}}
{{- $files := .Values.secrets.files -}}
{{- if and (has "tls.crt" $files) (kindIs "bool" $exposure.tls) (not $exposure.tls) -}}
{{- fail "exposure.tls is false, and secrets.files has tls.crt: clients that reach the pods need https" -}}
{{- end -}}
{{- if and (hasPrefix "gateway" $exposure.kind) (not $exposure.gateway.parentRefs) -}}
{{- fail (printf "exposure.kind is %s: name the Gateway in exposure.gateway.parentRefs" $exposure.kind) -}}
{{- end -}}
{{- if and (has $exposure.kind (list "ingress" "gateway" "gateway-tls")) (not $exposure.host) -}}
{{- fail (printf "exposure.kind is %s: set exposure.host" $exposure.kind) -}}
{{- end -}}
{{- if and (eq $exposure.kind "gateway-tls") (not (has "tls.crt" $files)) -}}
{{- fail "exposure.kind is gateway-tls: TLS ends in the gateway's pods, so secrets.files needs tls.crt and tls.key" -}}
{{- end -}}
{{- if and (eq $exposure.kind "nlb") (not $exposure.nlb.internal) (not $exposure.nlb.certificateArn) (not (has "tls.crt" $files)) -}}
{{- fail "exposure.kind is nlb, open to the Internet, and without TLS: set exposure.nlb.certificateArn, or add tls.crt and tls.key to secrets.files" -}}
{{- end -}}
{{- if and (eq $exposure.kind "nlb") $exposure.nlb.certificateArn (has "tls.crt" $files) -}}
{{- fail "exposure.nlb.certificateArn ends TLS at the balancer: leave tls.crt and tls.key out of secrets.files" -}}
{{- end -}}
{{- if and (eq $exposure.kind "nlb") $exposure.nlb.certificateArn $exposure.affinity -}}
{{- fail "exposure.nlb.certificateArn makes a listener for TLS, which has no stickiness: set exposure.affinity to false, or leave certificateArn empty and add tls.crt and tls.key to secrets.files" -}}
{{- end -}}
{{- $turn := .Values.turn -}}
{{- if $turn.enabled -}}
{{- if not .Values.networkPolicy.enabled -}}
{{- fail "turn.enabled needs networkPolicy.enabled: turn.peerRange has all pods in it, and only the policies keep TURN from relaying to others than the gateways" -}}
{{- end -}}
{{- range $name := tuple "image" "peerRange" "peerCidr" "existingSecret" -}}
{{- if not (get $turn $name) }}{{ fail (printf "turn.enabled needs turn.%s" $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

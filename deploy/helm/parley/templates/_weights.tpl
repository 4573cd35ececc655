{{- /* Containers that bring and check the weights before the server starts; empty where nothing is to be done. */ -}}
{{- define "parley.weights.containers" -}}
{{- $weights := .Values.weights -}}
{{- $worker := .Values.worker -}}
{{- if eq $weights.source "s3" }}
- name: copy-weights
  image: {{ include "parley.registered" (dict "root" $ "name" $weights.s3.image) }}
  command: [aws]
  args: [s3, sync, {{ $weights.s3.uri | quote }}, /var/lib/parley/models, --no-progress]
  env:
    # Where the command keeps its cache.
    - {name: HOME, value: /tmp}
    {{- with $weights.s3.region }}
    - {name: AWS_REGION, value: {{ . }}}
    {{- end }}
  {{- include "parley.weights.common" . | nindent 2 }}
{{- end }}
{{- if eq $weights.source "hub" }}
- name: fetch-weights
  image: {{ include "parley.image" (dict "root" $ "image" $weights.image "default" "") }}
  imagePullPolicy: {{ $weights.image.pullPolicy }}
  args:
    - --profile={{ $worker.profile }}
    {{- with $weights.hub.models }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $weights.hub.existingSecret }}
  env:
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: {{ . }}, key: HF_TOKEN}}
  {{- end }}
  {{- include "parley.weights.common" . | nindent 2 }}
{{- end }}
{{- if and (has $weights.source (list "s3" "volume")) (eq $worker.profile "open") }}
- name: check-weights
  image: {{ include "parley.image" (dict "root" $ "image" $weights.image "default" "") }}
  imagePullPolicy: {{ $weights.image.pullPolicy }}
  args: [--status, --verify, --profile=open]
  {{- include "parley.weights.common" . | nindent 2 }}
{{- end }}
{{- if and (ne $weights.source "image") $weights.checksums }}
- name: check-sums
  image: {{ include "parley.image" (dict "root" $ "image" $weights.image "default" "") }}
  imagePullPolicy: {{ $weights.image.pullPolicy }}
  # Also what is there and not in the list: a file that was added is as good as one that was changed. Folders and files
  # that begin with a dot are those of the programs that bring the weights.
  command: [sh, -ceu]
  args:
    - |
      sha256sum --check --strict --quiet /etc/parley/sums/SHA256SUMS
      sed 's/^\\\{0,1\}[0-9a-f]* [ *]//' /etc/parley/sums/SHA256SUMS | sort > /tmp/listed
      find . -name '.?*' -prune -o ! -type d -printf '%P\n' | sort > /tmp/found
      more=$(comm -13 /tmp/listed /tmp/found)
      [ -z "$more" ] || { printf 'not in weights.checksums:\n%s\n' "$more" >&2; exit 1; }
  workingDir: /var/lib/parley/models
  {{- include "parley.weights.common" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "parley.weights.common" -}}
{{- $isRead := eq .Values.weights.source "volume" -}}
securityContext: {{- include "parley.containerSecurity" . | nindent 2 }}
resources: {{- toYaml .Values.weights.resources | nindent 2 }}
volumeMounts:
  - {name: weights, mountPath: /var/lib/parley/models{{ if $isRead }}, readOnly: true{{ end }}}
  - {name: tmp, mountPath: /tmp}
  - {name: cache, mountPath: /var/cache/parley}
  {{- if .Values.weights.checksums }}
  - {name: sums, mountPath: /etc/parley/sums, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "parley.weights.volumes" -}}
{{- $weights := .Values.weights -}}
{{- if ne $weights.source "image" }}
- name: weights
  {{- if $weights.claim }}
  persistentVolumeClaim: {claimName: {{ $weights.claim }}}
  {{- else if $weights.storageClass }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: {{ $weights.storageClass }}
        resources: {requests: {storage: {{ $weights.size }}}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $weights.size }}}
  {{- end }}
{{- if $weights.checksums }}
- name: sums
  configMap: {name: {{ include "parley.fullname" . }}-sums}
{{- end }}
{{- end }}
{{- end -}}

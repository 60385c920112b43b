{{- define "orchard.name" -}}
{{- contains "orchard" .Release.Name | ternary .Release.Name (printf "%s-orchard" .Release.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "orchard.selector" -}}
app.kubernetes.io/name: orchard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "orchard.labels" -}}
{{ include "orchard.selector" . }}
app.kubernetes.io/part-of: orchard
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "orchard.sandboxes" -}}
{{- .Values.sandboxes.namespace | default (printf "%s-sandboxes" .Release.Namespace) }}
{{- end }}

{{- /* Call with (list . "service" "orchard-service"). */ -}}
{{- define "orchard.image" -}}
{{- $root := index . 0 }}{{- $images := $root.Values.images }}
{{- with index $images (index . 1) }}{{ . }}{{ else -}}
{{- $registry := required "images.registry is needed: where `make images REGISTRY=…` pushed to" $images.registry -}}
{{- printf "%s/%s:%s" $registry (index . 2) ($images.tag | default $root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "orchard.keySecret" -}}
{{- .Values.serviceKey.existingSecret | default "orchard-service-key" }}
{{- end }}

{{- /* The namespaces from which service and clients may speak with sandboxes, as JSON. */ -}}
{{- define "orchard.callers" -}}
{{- $named := dig "ingress" "namespaces" (list) .Values.settings }}
{{- without (append $named .Release.Namespace | uniq) (include "orchard.sandboxes" .) | toJson }}
{{- end }}

{{- define "orchard.settings" -}}
{{- $own := dict "namespace" (include "orchard.sandboxes" .) "profile" .Values.sandboxes.profile }}
{{- $_ := set $own "daemon_image" (include "orchard.image" (list . "sandboxd" "orchard-sandboxd")) }}
{{- $_ := set $own "key_secret" (include "orchard.keySecret" .) }}
{{- $ingress := deepCopy (.Values.settings.ingress | default dict) }}
{{- $_ := set $ingress "namespaces" (include "orchard.callers" . | fromJsonArray) }}
{{- merge $own (dict "ingress" $ingress) .Values.settings | toToml }}
{{- end }}

{{- /* Bytes of /tmp: what commits can take at most. Each holds its layer twice, plain and packed, and two lists of files (64 MiB
each at most; packing adds next to nothing); of images, the lists last used are kept (256 MiB). The numbers for what is not
given are the defaults of KubernetesSettings. */ -}}
{{- define "orchard.scratch" -}}
{{- $room := mul 256 1048576 }}
{{- if .Values.settings.commit_repository }}
{{- $each := add $room (mul 2 (dig "commit_bytes" 2147483648 .Values.settings | int64)) }}
{{- add $room $room (mul $each (dig "commits" 2 .Values.settings | int64)) }}
{{- else }}
{{- $room }}
{{- end }}
{{- end }}

{{- /* What the service asks for, as YAML; its scratch too, so that it only comes to a node that has so much. What the values
bound or ask for of it by themselves stays. */ -}}
{{- define "orchard.resources" -}}
{{- $resources := deepCopy (.Values.resources | default dict) }}
{{- if and .Values.settings.commit_repository (not (dig "ephemeral-storage" "" ($resources.limits | default dict))) }}
{{- $resources = merge $resources (dict "requests" (dict "ephemeral-storage" (include "orchard.scratch" .))) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- /* Call with (list FILE KEYS): keys.toml as an upgrade leaves it. The quota and rate that are named replace those of its only
key; nothing else of it is touched, since it may have been edited. */ -}}
{{- define "orchard.keptKeys" -}}
{{- $file := index . 0 }}{{- $keys := index . 1 }}
{{- if eq 1 (len (regexFindAll "(?m)^[ \\t]*\\[\\[" $file -1)) }}
{{- range $name := list "quota" "rate" }}
{{- $value := index $keys $name }}
{{- if not (kindIs "invalid" $value) }}
{{- $line := printf "%s = %s" $name (eq $name "quota" | ternary (int64 $value) $value | toString) }}
{{- $old := printf "(?m)^[ \\t]*[\"']?%s[\"']?[ \\t]*=.*$" $name }}
{{- if regexMatch $old $file }}
{{- $file = regexReplaceAllLiteral $old $file $line }}
{{- else }}
{{- $file = regexReplaceAllLiteral "(?m)^[ \\t]*\\[\\[[ \\t]*keys[ \\t]*\\]\\]" $file (printf "[[keys]]\n%s" $line) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $file }}
{{- end }}

{{- define "orchard.container" -}}
image: {{ include "orchard.image" (list . "service" "orchard-service") }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  - {name: ORCHARD_KUBERNETES, value: /etc/orchard/settings.toml}
  - {name: ORCHARD_HOME, value: /tmp/orchard}
  - {name: ORCHARD_CACHE, value: /tmp/cache}
{{- end }}

{{- define "orchard.pod" -}}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
nodeSelector: {{- merge (dict) (default dict .Values.nodeSelector) (dict "kubernetes.io/os" "linux") | toYaml | nindent 2 }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

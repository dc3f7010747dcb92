{{/* Name of all objects. */}}
{{- define "tidegate.name" -}}
{{- if contains "tidegate" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-tidegate" (.Release.Name | trunc 43 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Labels by which pods are found. They never change. */}}
{{- define "tidegate.selector" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Whether state is on a volume. */}}
{{- define "tidegate.isPersistent" -}}
{{- if and .Values.persistence.enabled (not .Values.redis) -}}yes{{- end -}}
{{- end -}}

{{/* Whether there can be several nodes. */}}
{{- define "tidegate.isFleet" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}yes{{- end -}}
{{- end -}}

{{/* Values that contradict each other. */}}
{{- define "tidegate.check" -}}
{{- if not (has .Values.form (list "service" "sidecar")) -}}
{{- fail (printf "form is %q: write service or sidecar" .Values.form) -}}
{{- end -}}
{{- if and (include "tidegate.isFleet" .) (not .Values.redis) (eq .Values.form "service") -}}
{{- fail "several nodes share their limits through Redis: set redis, or replicas to 1 and autoscaling.enabled to false" -}}
{{- end -}}
{{- if and (eq .Values.form "sidecar") (not .Values.sidecar.containers) -}}
{{- fail "form is sidecar: set sidecar.containers to the containers of your service, and sidecar.upstream to their address" -}}
{{- end -}}
{{- if and (eq .Values.form "sidecar") (include "tidegate.isPersistent" .) -}}
{{- fail "form is sidecar: pods cannot share a volume for their state: set redis, or persistence.enabled to false" -}}
{{- end -}}
{{- end -}}

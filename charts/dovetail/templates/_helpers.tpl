{{- define "dovetail.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "dovetail.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dovetail.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dovetail.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dovetail.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "dovetail.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata takes a list: the root, the name, and optionally a namespace ("" is that of the
release, "-" is none), labels and annotations. */}}
{{- define "dovetail.metadata" -}}
{{- $root := index . 0 -}}
{{- $namespace := "" }}{{ if gt (len .) 2 }}{{ $namespace = index . 2 }}{{ end -}}
{{- $labels := include "dovetail.labels" $root | fromYaml }}{{ if gt (len .) 3 }}{{ $labels = merge (deepCopy (default dict (index . 3))) $labels }}{{ end -}}
{{- $annotations := deepCopy $root.Values.additionalAnnotations }}{{ if gt (len .) 4 }}{{ $annotations = merge (deepCopy (default dict (index . 4))) $annotations }}{{ end -}}
name: {{ index . 1 }}
{{- if ne $namespace "-" }}
namespace: {{ default $root.Release.Namespace $namespace }}
{{- end }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "dovetail.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dovetail.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "dovetail.subject" -}}
- kind: ServiceAccount
  name: {{ include "dovetail.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{- define "dovetail.image" -}}
{{- $image := .Values.controller.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "dovetail.leaseNamespace" -}}
{{- default .Release.Namespace .Values.leaderElection.namespace -}}
{{- end -}}

{{/* A controller that only watches makes no certificate, and has nothing to refuse. */}}
{{- define "dovetail.webhook" -}}
{{- if and .Values.webhook.enabled (not .Values.shadow) }}true{{ end -}}
{{- end -}}

{{- define "dovetail.webhookSecret" -}}
{{- printf "%s-webhook-cert" (include "dovetail.fullname" .) -}}
{{- end -}}

{{/* The names of feature gates are those of values with a capital. */}}
{{- define "dovetail.featureGates" -}}
{{- $out := list -}}
{{- range $name, $on := .Values.settings.featureGates -}}
{{- $out = append $out (printf "%s%s=%t" (substr 0 1 $name | upper) (substr 1 -1 $name) $on) -}}
{{- end -}}
{{- join "," $out -}}
{{- end -}}

{{- define "dovetail.schedulerConfig" -}}
{{- with .Values.settings.schedulerConfig -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . }}{{ end -}}
{{- end -}}
{{- end -}}

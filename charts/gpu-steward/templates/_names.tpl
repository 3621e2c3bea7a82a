{{- define "steward.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "steward.agent" -}}
{{- .Values.agent.serviceAccount | default (printf "%s-agent" (include "steward.name" .)) }}
{{- end }}

{{- define "steward.extender" -}}
{{- .Values.extender.serviceAccount | default (printf "%s-extender" (include "steward.name" .)) }}
{{- end }}

{{/* The account of agents that run under systemd. */}}
{{- define "steward.service" -}}
{{- .Values.service.serviceAccount | default (printf "%s-service" (include "steward.name" .)) }}
{{- end }}

{{/* The accounts that agents run under, as subjects of a binding. */}}
{{- define "steward.agentSubjects" -}}
- kind: ServiceAccount
  name: {{ include "steward.agent" . }}
  namespace: {{ .Release.Namespace }}
{{- if .Values.service.enabled }}
- kind: ServiceAccount
  name: {{ include "steward.service" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
{{- end }}

{{/* The same as users, in CEL. */}}
{{- define "steward.agentUsers" -}}
['system:serviceaccount:{{ .Release.Namespace }}:{{ include "steward.agent" . }}'
{{- if .Values.service.enabled }}, 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "steward.service" . }}'{{ end }}]
{{- end }}

{{/* The same for the extender: NAMESPACE:NAME, separated by commas. */}}
{{- define "steward.agentAccounts" -}}
{{ .Release.Namespace }}:{{ include "steward.agent" . }}
{{- if .Values.service.enabled }},{{ .Release.Namespace }}:{{ include "steward.service" . }}{{ end }}
{{- end }}

{{/* Not empty if agents evict pods that use more of a GPU than they claim. */}}
{{- define "steward.evicts" -}}
{{- if eq (toString (get .Values.agent.settings "evict-over-use")) "true" }}yes{{ end }}
{{- end }}

{{/* Not empty if the extender writes on Nodes what is taken of their GPUs. */}}
{{- define "steward.assumes" -}}
{{- if and .Values.extender.enabled (eq (toString (get .Values.extender.settings "assume-annotation")) "true") }}yes{{ end }}
{{- end }}

{{- define "steward.labels" -}}
app.kubernetes.io/name: gpu-steward
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "steward.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

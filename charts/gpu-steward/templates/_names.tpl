{{- define "steward.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "steward.agent" -}}
{{- .Values.agent.serviceAccount | default (printf "%s-agent" (include "steward.name" .)) }}
{{- end }}

{{- define "steward.extender" -}}
{{- .Values.extender.serviceAccount | default (printf "%s-extender" (include "steward.name" .)) }}
{{- end }}

{{/* Not empty where agents evict pods that use more of a GPU than they were promised. */}}
{{- define "steward.evicts" -}}
{{- if eq (toString (get .Values.agent.settings "evict-over-use")) "true" }}yes{{ end }}
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

{{- define "llm.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "llm.allLabels" -}}
{{ include "llm.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "llm.image" -}}
{{- if .Values.image.tag }}{{ printf "%s:%s" .Values.image.repository (toString .Values.image.tag) }}{{ else }}{{ .Values.image.repository }}{{ end -}}
{{- end }}

{{- define "llm.port" -}}
{{- dig "api" "port" 8000 .Values.config -}}
{{- end }}

{{- /* What must not go wrong in silence. */ -}}
{{- define "llm.check" -}}
{{- $drain := dig "api" "shutdown_grace_s" 30 .Values.config -}}
{{- if le (int .Values.shutdown.graceSeconds) (add (int .Values.shutdown.preStopSeconds) (ceil $drain)) -}}
{{- fail "shutdown.graceSeconds must be above shutdown.preStopSeconds + config.api.shutdown_grace_s: streams would be cut" -}}
{{- end -}}
{{- range dig "api" "api_keys" list .Values.config -}}
{{- if not (hasPrefix "${" .) -}}
{{- fail "config.api.api_keys holds a key; name a variable instead, such as ${LLM_INFERENCE_API_KEYS_1}, and put the key into existingSecret" -}}
{{- end -}}
{{- end -}}
{{- range dig "api" "keys" list .Values.config -}}
{{- if and .key (not (hasPrefix "${" .key)) -}}
{{- fail "config.api.keys holds a key; name a variable instead, and put the key into existingSecret" -}}
{{- end -}}
{{- end -}}
{{- $keys := or (dig "api" "api_keys" list .Values.config) (dig "api" "keys" list .Values.config) (dig "api" "key_store" "" .Values.config) -}}
{{- if and .Values.ingress.enabled (not $keys) -}}
{{- fail "ingress.enabled without config.api.api_keys: everybody could use the service" -}}
{{- end -}}
{{- end }}

{{- define "cluster.name" -}}
{{- default .Release.Name .Values.fullnameOverride }}
{{- end }}

{{/* The values that are fields of RocketMQCluster.spec, with the layout's where they say nothing. */}}
{{- define "cluster.spec" -}}
{{- $spec := omit (deepCopy .Values) "global" "layout" "fullnameOverride" "labels" "annotations" }}
{{- $layout := get (.Files.Get "files/layouts.yaml" | fromYaml) .Values.layout }}
{{- $_ := set $spec "brokerGroups" (merge ($spec.brokerGroups | default dict) $layout) }}
{{- range $field, $value := $spec }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $spec $field }}
{{- end }}
{{- end }}
{{- toYaml $spec }}
{{- end }}

{{- define "cluster.name" -}}
{{- default .Release.Name .Values.fullnameOverride }}
{{- end }}

{{- define "cluster.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- $own := dict "app.kubernetes.io/name" .Chart.Name "app.kubernetes.io/instance" .Release.Name "helm.sh/chart" $chart }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- merge $own (.Values.labels | default dict) | toYaml }}
{{- end }}

{{/* The values that are fields of RocketMQCluster.spec, with the layout's where they say nothing. */}}
{{- define "cluster.spec" -}}
{{- $spec := omit (deepCopy .Values) "global" "layout" "fullnameOverride" "labels" "annotations" "certificate" }}
{{- $layout := get (.Files.Get "files/layouts.yaml" | fromYaml) .Values.layout }}
{{- $_ := set $spec "brokerGroups" (merge ($spec.brokerGroups | default dict) $layout) }}
{{- range $field, $value := $spec }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $spec $field }}
{{- end }}
{{- end }}
{{- toYaml $spec }}
{{- end }}

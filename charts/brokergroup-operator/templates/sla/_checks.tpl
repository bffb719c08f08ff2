{{/* Fails on values that the report's command, or its pod, would refuse at the end of the month. values.schema.json checks single values. */}}
{{- define "sla.check" -}}
{{- $report := .Values.slaReport }}
{{- include "sla.checkServer" . }}
{{- include "sla.checkLabels" . }}
{{- if not $report.incidents }}
{{- fail "slaReport.incidents is empty: expected the operator's incident logs, below the mount path of one of slaReport.volumes" }}
{{- end }}
{{- range concat $report.incidents $report.source.exports }}
{{- $path := . }}
{{- $mounted := false }}
{{- range $report.volumes }}
{{- if hasPrefix (printf "%s/" .mountPath) (printf "%s/" $path) }}
{{- $mounted = true }}
{{- end }}
{{- end }}
{{- if not $mounted }}
{{- fail (printf "slaReport: %s lies below no mountPath of slaReport.volumes" $path) }}
{{- end }}
{{- end }}
{{- if and $report.output.claimName $report.output.storage }}
{{- fail "slaReport.output: expected claimName (a claim that is there) or storage (one to make), not both" }}
{{- end }}
{{- if and (include "sla.daily" .) (not (include "sla.outputClaim" .)) (not $report.daily.store) }}
{{- fail "slaReport.output: expected claimName or storage, for the table of days (slaReport.daily.enabled) outlives the jobs; or daily.store, a place in S3; or daily.enabled false, which asks Prometheus for the whole period at once" }}
{{- end }}
{{- if and $report.daily.storeSecretName (not $report.daily.store) }}
{{- fail (printf "slaReport.daily.storeSecretName %s: expected daily.store as well, the table's place as s3a://bucket/path" $report.daily.storeSecretName) }}
{{- end }}
{{- if and (eq $report.mode "ScheduledSparkApplication") (not (.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication")) }}
{{- fail "slaReport.mode ScheduledSparkApplication: this cluster does not know sparkoperator.k8s.io/v1beta2; install Kubeflow's Spark operator first, or take mode CronJob or SparkSubmit" }}
{{- end }}
{{- end }}

{{/* A server or files, never both. */}}
{{- define "sla.checkServer" -}}
{{- $source := .Values.slaReport.source }}
{{- if eq $source.form "http" }}
{{- include "sla.checkAddress" . }}
{{- include "sla.checkCredentials" . }}
{{- if $source.exports }}
{{- fail "slaReport.source.exports: expected none with form http, which asks the server" }}
{{- end }}
{{- else }}
{{- $given := dict "prometheusUrl" $source.prometheusUrl "bearerTokenSecretName" $source.bearerTokenSecretName
  "headersSecretName" $source.headersSecretName "basicAuth.secretName" $source.basicAuth.secretName
  "basicAuth.user" $source.basicAuth.user "tls.secretName" $source.tls.secretName }}
{{- range $name, $value := $given }}
{{- if $value }}
{{- fail (printf "slaReport.source.%s: expected none with form %s, which reads files; it is for form http" $name $source.form) }}
{{- end }}
{{- end }}
{{- if not $source.exports }}
{{- fail (printf "slaReport.source.exports is empty: expected files or folders in the form %s" $source.form) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not in the schema: its error messages show the whole address, which may hold a password. */}}
{{- define "sla.checkAddress" -}}
{{- $source := .Values.slaReport.source }}
{{- $url := $source.prometheusUrl }}
{{- if not $url }}
{{- fail "slaReport.source.prometheusUrl is empty: expected the server, as http://prometheus.monitoring:9090" }}
{{- end }}
{{- if contains "@" $url }}
{{- fail "slaReport.source.prometheusUrl holds a user or a password: expected them in source.basicAuth" }}
{{- end }}
{{- if not (regexMatch "^https?://[^\\s]+$" $url) }}
{{- fail (printf "slaReport.source.prometheusUrl %s: expected http://host:port or https://host:port" $url) }}
{{- end }}
{{- if regexMatch "[?#]" $url }}
{{- fail (printf "slaReport.source.prometheusUrl %s: expected no ? and no #" $url) }}
{{- end }}
{{- if and $source.tls.secretName (not (hasPrefix "https://" $url)) }}
{{- fail (printf "slaReport.source.tls.secretName %s: expected an https:// address, not %s" $source.tls.secretName $url) }}
{{- end }}
{{- end }}

{{- define "sla.checkCredentials" -}}
{{- $source := .Values.slaReport.source }}
{{- if and $source.basicAuth.secretName (not $source.basicAuth.user) }}
{{- fail "slaReport.source.basicAuth.user is empty: expected the user name of the password in basicAuth.secretName" }}
{{- end }}
{{- if and $source.basicAuth.user (not $source.basicAuth.secretName) }}
{{- fail (printf "slaReport.source.basicAuth.secretName is empty: expected the Secret with the password of user %s" $source.basicAuth.user) }}
{{- end }}
{{- if and $source.bearerTokenSecretName $source.basicAuth.secretName }}
{{- fail "slaReport.source: bearerTokenSecretName and basicAuth.secretName: expected one of them" }}
{{- end }}
{{- if and $source.tls.clientCertificate (not $source.tls.secretName) }}
{{- fail "slaReport.source.tls.secretName is empty: expected the Secret with tls.crt and tls.key, for clientCertificate is true" }}
{{- end }}
{{- end }}

{{/* Here, since Helm's schema error for a wrong property name names the wrong parent. */}}
{{- define "sla.checkLabels" -}}
{{- range .Values.slaReport.replicaLabels }}
{{- if has (trimPrefix "exported_" .) (list "namespace" "cluster" "broker_group") }}
{{- fail (printf "slaReport.replicaLabels: %s: expected a label that does not name the group" .) }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.slaReport.match }}
{{- if not (regexMatch "^[a-zA-Z_][a-zA-Z0-9_]*$" $name) }}
{{- fail (printf "slaReport.match: %s: expected the name of a label, as region" $name) }}
{{- end }}
{{- if not $value }}
{{- fail (printf "slaReport.match: %s is empty: expected the value of the label, as eu" $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* 48: a CronJob's name may have 52 characters. */}}
{{- define "sla.name" -}}
{{- printf "%s-sla" (include "operator.fullname" . | trunc 48 | trimSuffix "-") }}
{{- end }}

{{- define "sla.namespace" -}}
{{- default .Release.Namespace .Values.slaReport.namespace }}
{{- end }}

{{/* Not the operator's labels: its Services, its PodMonitor and its PodDisruptionBudget select by those. */}}
{{- define "sla.selectorLabels" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}-sla
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "sla.labels" -}}
{{ include "sla.selectorLabels" . }}
app.kubernetes.io/component: sla-report
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{- define "sla.image" -}}
{{- printf "%s:%s" .Values.slaReport.image.repository (default .Chart.AppVersion .Values.slaReport.image.tag) }}
{{- end }}

{{- define "sla.outputClaim" -}}
{{- default (ternary (include "sla.name" .) "" (not (empty .Values.slaReport.output.storage))) .Values.slaReport.output.claimName }}
{{- end }}

{{/* Whether each day is reduced once and reports read the table of days. A file is there whole, and executors read a month at once. */}}
{{- define "sla.daily" -}}
{{- $report := .Values.slaReport }}
{{- if and $report.daily.enabled (eq $report.source.form "http") (eq $report.mode "CronJob") }}true{{ end }}
{{- end }}

{{/* Where the table of days lies. */}}
{{- define "sla.store" -}}
{{- default "/reports/runs" .Values.slaReport.daily.store }}
{{- end }}

{{/* How a table in S3 is reached. */}}
{{- define "sla.storeEnvironment" -}}
{{- with .Values.slaReport.daily.storeSecretName }}
envFrom:
  - secretRef:
      name: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Where the samples come from. */}}
{{- define "sla.originWords" -}}
{{- $report := .Values.slaReport }}
- --from={{ $report.source.form }}
{{- if eq $report.source.form "http" }}
- --url={{ $report.source.prometheusUrl }}
{{- if $report.source.bearerTokenSecretName }}
- --bearer-token-file=/etc/brokergroup/prometheus/token
{{- end }}
{{- if $report.source.headersSecretName }}
- --header-file=/etc/brokergroup/prometheus-headers/headers
{{- end }}
{{- if $report.source.basicAuth.secretName }}
- {{ printf "--user=%s" $report.source.basicAuth.user | quote }}
- --password-file=/etc/brokergroup/prometheus-user/password
{{- end }}
{{- if $report.source.tls.secretName }}
- --ca-file=/etc/brokergroup/prometheus-tls/ca.crt
{{- if $report.source.tls.clientCertificate }}
- --cert-file=/etc/brokergroup/prometheus-tls/tls.crt
- --key-file=/etc/brokergroup/prometheus-tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- range $report.source.exports }}
- --export={{ . }}
{{- end }}
{{- end }}

{{/* The arguments after `brokergroup sla` that bring the table of days up to now. */}}
{{- define "sla.tableWords" -}}
- backfill
{{ include "sla.originWords" . | trim }}
- --store={{ include "sla.store" . }}
- --catch-up-days={{ .Values.slaReport.daily.catchUpDays }}
{{- range .Values.slaReport.incidents }}
- --incidents={{ . }}
{{- end }}
{{- end }}

{{/* The arguments after `brokergroup sla` that make the report. */}}
{{- define "sla.words" -}}
{{- $report := .Values.slaReport }}
- report
{{- if include "sla.daily" . }}
- --from=runs
- --export={{ include "sla.store" . }}
{{- else }}
{{ include "sla.originWords" . | trim }}
{{- end }}
{{- range $report.incidents }}
- --incidents={{ . }}
{{- end }}
- --period={{ $report.period }}
- --time-zone={{ $report.timeZone }}
{{- if not (kindIs "invalid" $report.objective) }}
- --objective={{ $report.objective }}
{{- end }}
{{- if $report.objectivesConfigMapName }}
- --objectives=/etc/brokergroup/objectives
{{- end }}
{{- if $report.groupObjectives }}
- --objectives-from-cluster
{{- with .Values.watch.namespace }}
- --objectives-namespace={{ . }}
{{- end }}
{{- end }}
{{- if $report.amendmentsConfigMapName }}
- --amendments=/etc/brokergroup/amendments/amendments.yaml
{{- end }}
{{- range $report.replicaLabels }}
- --replica-label={{ . }}
{{- end }}
{{- range $name, $value := $report.match }}
- {{ printf "--match=%s=%s" $name $value | quote }}
{{- end }}
- --out=/reports/{period}
{{- range $report.extraArguments }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "sla.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "sla.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Secrets for access to the server: for each the volume's name, the Secret, and the keys that the command reads. */}}
{{- define "sla.serverSecrets" -}}
{{- $source := .Values.slaReport.source }}
{{- with $source.bearerTokenSecretName }}
prometheus: {secret: {{ . | quote }}, keys: [token]}
{{- end }}
{{- with $source.headersSecretName }}
prometheus-headers: {secret: {{ . | quote }}, keys: [headers]}
{{- end }}
{{- with $source.basicAuth.secretName }}
prometheus-user: {secret: {{ . | quote }}, keys: [password]}
{{- end }}
{{- with $source.tls.secretName }}
prometheus-tls: {secret: {{ . | quote }}, keys: [ca.crt{{ if $source.tls.clientCertificate }}, tls.crt, tls.key{{ end }}]}
{{- end }}
{{- end }}

{{/* Drivers and executors read the same input; only a driver writes the report. */}}
{{- define "sla.mounts" -}}
- name: temporary
  mountPath: /tmp
{{- range .Values.slaReport.volumes }}
- name: input-{{ .name }}
  mountPath: {{ .mountPath | quote }}
  readOnly: true
{{- end }}
{{- range $name, $_ := include "sla.serverSecrets" . | fromYaml }}
- name: {{ $name | quote }}
  mountPath: /etc/brokergroup/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "sla.volumes" -}}
- name: temporary
  emptyDir: {}
{{- range .Values.slaReport.volumes }}
- name: input-{{ .name }}
  persistentVolumeClaim:
    claimName: {{ .claimName | quote }}
    readOnly: true
{{- end }}
{{- range $name, $told := include "sla.serverSecrets" . | fromYaml }}
- name: {{ $name | quote }}
  secret:
    secretName: {{ $told.secret | quote }}
    defaultMode: 0440
    # By name: an Event of the pod then names a missing key.
    items:
      {{- range $told.keys }}
      - key: {{ . | quote }}
        path: {{ . | quote }}
      {{- end }}
{{- end }}
{{- end }}

{{- define "sla.driverMounts" -}}
{{ include "sla.mounts" . }}
- name: reports
  mountPath: /reports
{{- if .Values.slaReport.amendmentsConfigMapName }}
- name: amendments
  mountPath: /etc/brokergroup/amendments
  readOnly: true
{{- end }}
{{- if .Values.slaReport.objectivesConfigMapName }}
- name: objectives
  mountPath: /etc/brokergroup/objectives
  readOnly: true
{{- end }}
{{- end }}

{{- define "sla.tableVolumes" -}}
{{ include "sla.volumes" . }}
- name: reports
  {{- with include "sla.outputClaim" . }}
  persistentVolumeClaim:
    claimName: {{ . | quote }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}

{{- define "sla.driverVolumes" -}}
{{ include "sla.tableVolumes" . }}
{{- with .Values.slaReport.amendmentsConfigMapName }}
- name: amendments
  configMap:
    name: {{ . | quote }}
{{- end }}
{{- with .Values.slaReport.objectivesConfigMapName }}
- name: objectives
  configMap:
    name: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The container that brings the table of days up to now. */}}
{{- define "sla.tableContainer" -}}
- name: table
  image: {{ include "sla.image" . | quote }}
  imagePullPolicy: {{ .Values.slaReport.image.pullPolicy }}
  args:
    - sla
    {{- include "sla.tableWords" . | trim | nindent 4 }}
  env:
    - name: PYSPARK_SUBMIT_ARGS
      value: --driver-memory {{ .Values.slaReport.driverMemory }} pyspark-shell
  {{- with include "sla.storeEnvironment" . }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  resources:
    {{- toYaml .Values.slaReport.resources | nindent 4 }}
  securityContext:
    {{- include "sla.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "sla.mounts" . | nindent 4 }}
    - name: reports
      mountPath: /reports
{{- end }}

{{- define "sla.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.slaReport.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.slaReport.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

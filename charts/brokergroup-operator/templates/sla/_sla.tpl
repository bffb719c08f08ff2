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
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sla.labels" -}}
{{ include "sla.selectorLabels" . }}
app.kubernetes.io/component: sla-report
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sla.image" -}}
{{- printf "%s:%s" .Values.slaReport.image.repository (default .Chart.AppVersion .Values.slaReport.image.tag) }}
{{- end }}

{{- define "sla.outputClaim" -}}
{{- default (ternary (include "sla.name" .) "" (not (empty .Values.slaReport.output.storage))) .Values.slaReport.output.claimName }}
{{- end }}

{{/* Refuses what cannot work. */}}
{{- define "sla.check" -}}
{{- $report := .Values.slaReport }}
{{- if eq $report.source.form "http" }}
{{- if not $report.source.prometheusUrl }}
{{- fail "slaReport.source.prometheusUrl is empty: expected the server, as http://prometheus.monitoring:9090" }}
{{- end }}
{{- if $report.source.exports }}
{{- fail "slaReport.source.exports: expected none with form http, which asks the server" }}
{{- end }}
{{- if and $report.source.basicAuth.secretName (not $report.source.basicAuth.user) }}
{{- fail "slaReport.source.basicAuth.user is empty: expected the user name of the password in basicAuth.secretName" }}
{{- end }}
{{- else if not $report.source.exports }}
{{- fail (printf "slaReport.source.exports is empty: expected files or folders in the form %s" $report.source.form) }}
{{- end }}
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
{{- if and (eq $report.mode "ScheduledSparkApplication") (not (.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication")) }}
{{- fail "slaReport.mode ScheduledSparkApplication: this cluster does not know sparkoperator.k8s.io/v1beta2; install Kubeflow's Spark operator first, or take mode CronJob or SparkSubmit" }}
{{- end }}
{{- end }}

{{/* The words after `brokergroup sla`. */}}
{{- define "sla.words" -}}
{{- $report := .Values.slaReport }}
- report
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
- --user={{ $report.source.basicAuth.user }}
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

{{/* What the server is reached with beside a token: by the end of its volume's name. */}}
{{- define "sla.serverSecrets" -}}
{{- with .Values.slaReport.source.headersSecretName }}
headers: {{ . }}
{{- end }}
{{- with .Values.slaReport.source.basicAuth.secretName }}
user: {{ . }}
{{- end }}
{{- with .Values.slaReport.source.tls.secretName }}
tls: {{ . }}
{{- end }}
{{- end }}

{{/* Drivers and executors read the same input; only a driver writes the report. */}}
{{- define "sla.mounts" -}}
- name: temporary
  mountPath: /tmp
{{- range .Values.slaReport.volumes }}
- name: input-{{ .name }}
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}
{{- if .Values.slaReport.source.bearerTokenSecretName }}
- name: prometheus
  mountPath: /etc/brokergroup/prometheus
  readOnly: true
{{- end }}
{{- range $name, $secret := include "sla.serverSecrets" . | fromYaml }}
- name: prometheus-{{ $name }}
  mountPath: /etc/brokergroup/prometheus-{{ $name }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "sla.volumes" -}}
- name: temporary
  emptyDir: {}
{{- range .Values.slaReport.volumes }}
- name: input-{{ .name }}
  persistentVolumeClaim:
    claimName: {{ .claimName }}
    readOnly: true
{{- end }}
{{- with .Values.slaReport.source.bearerTokenSecretName }}
- name: prometheus
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: token
        path: token
{{- end }}
{{- range $name, $secret := include "sla.serverSecrets" . | fromYaml }}
- name: prometheus-{{ $name }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
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

{{- define "sla.driverVolumes" -}}
{{ include "sla.volumes" . }}
- name: reports
  {{- with include "sla.outputClaim" . }}
  persistentVolumeClaim:
    claimName: {{ . }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- with .Values.slaReport.amendmentsConfigMapName }}
- name: amendments
  configMap:
    name: {{ . }}
{{- end }}
{{- with .Values.slaReport.objectivesConfigMapName }}
- name: objectives
  configMap:
    name: {{ . }}
{{- end }}
{{- end }}

{{- define "sla.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
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

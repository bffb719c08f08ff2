{{/* The template of Spark's pods: account, security context, volumes. Spark sets image, command and memory. */}}
{{- define "sla.driverTemplate" -}}
metadata:
  labels:
    {{- include "sla.labels" . | nindent 4 }}
spec:
  securityContext:
    {{- include "sla.podSecurity" . | nindent 4 }}
  {{- with include "sla.placement" . }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  containers:
    - name: report
      resources:
        {{- toYaml .Values.slaReport.resources | nindent 8 }}
      securityContext:
        {{- include "sla.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "sla.driverMounts" . | nindent 8 }}
  volumes:
    {{- include "sla.driverVolumes" . | nindent 4 }}
{{- end }}

{{/* Executors do not use the API server. */}}
{{- define "sla.executorTemplate" -}}
metadata:
  labels:
    {{- include "sla.labels" . | nindent 4 }}
spec:
  automountServiceAccountToken: false
  securityContext:
    {{- include "sla.podSecurity" . | nindent 4 }}
  {{- with include "sla.placement" . }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  containers:
    - name: executor
      securityContext:
        {{- include "sla.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "sla.mounts" . | nindent 8 }}
  volumes:
    {{- include "sla.volumes" . | nindent 4 }}
{{- end }}

{{/* The Roles depend on the first four: without them a driver creates ConfigMaps, and deletes ConfigMaps, Services and claims by label. */}}
{{- define "sla.sparkConf" -}}
{{- $archive := "-XX:SharedArchiveFile=/opt/brokergroup/spark.jsa -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off" }}
{{- $settings := dict
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.kubernetes.driver.reusePersistentVolumeClaim" "false"
  "spark.executor.memoryOverheadFactor" "0.4"
  "spark.driver.extraJavaOptions" $archive
  "spark.executor.extraJavaOptions" $archive }}
{{- merge (deepCopy .Values.slaReport.sparkConf) $settings | toYaml }}
{{- end }}

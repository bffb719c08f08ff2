{{- define "operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* 52: an ordinal and a suffix still fit into a name of 63. */}}
{{- define "operator.candidateName" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "operator.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* A Service's name begins with a letter and has no dot (RFC 1035); a release's need not. */}}
{{- define "operator.fullname" -}}
{{- $name := include "operator.candidateName" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "%s: the name of a Service must begin with a letter and have no dot; expected another release name, or fullnameOverride" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{/* Two releases in one namespace can't have one fullname: their other objects would collide. */}}
{{- define "operator.leaseName" -}}
{{- default (include "operator.fullname" .) .Values.leaseName }}
{{- end }}

{{- define "operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selectorLabels" . }}
app.kubernetes.io/component: operator
{{- /* kubectl brokergroup selects the pods by this label; nameOverride does not change it. */}}
brokergroup.dev/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* The IP families of a Service of the operator; empty if the values name none. */}}
{{- define "operator.ipFamilies" -}}
{{- with .Values.network.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- with .Values.network.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is empty: with serviceAccount.create=false, name the account to use" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "operator.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{/* The arguments of `brokergroup operator` for TLS, signatures and administrators; fails on values that contradict each other. */}}
{{- define "operator.securityArguments" -}}
{{- $security := .Values.security }}
{{- $tls := $security.tls }}
{{- if $tls.secretName }}
- --tls-mode={{ $tls.mode }}
- --tls-certificate=/etc/brokergroup/tls/tls.crt
- --tls-key=/etc/brokergroup/tls/tls.key
{{- with $tls.trustBundle.configMapName }}
- --tls-ca=/etc/brokergroup/trust/{{ $tls.trustBundle.key }}
{{- else }}
- --tls-ca=/etc/brokergroup/tls/ca.crt
{{- end }}
- --tls-client-certificates={{ $tls.clientCertificates }}
{{- if $tls.dialBrokers }}
- --broker-tls
{{- end }}
{{- if $tls.dialNameServers }}
- --name-server-tls
{{- end }}
{{- else if or $tls.trustBundle.configMapName (ne $tls.clientCertificates "none") $tls.dialBrokers $tls.dialNameServers $tls.certManager.create $security.admin.certificateNames }}
{{- fail "security.tls.secretName is empty: TLS, client certificates and cert-manager need the name of the Secret" }}
{{- end }}
{{- if $security.admin.secretName }}
- --admin-credentials=/etc/brokergroup/admin
{{- end }}
{{- if and $security.admin.certificateNames (eq $tls.clientCertificates "none") }}
{{- fail "security.admin.certificateNames: expected security.tls.clientCertificates optional or required" }}
{{- end }}
{{- range $security.admin.certificateNames }}
- {{ printf "--admin-certificate-name=%s" . | quote }}
{{- end }}
{{- if $security.configurationReadable }}
- --configuration-readable
{{- end }}
{{- if $security.brokersWithoutPods }}
- --brokers-without-pods
{{- end }}
- --drain-seconds={{ ternary .Values.controller.drainSeconds 0 (gt (int .Values.replicaCount) 1) }}
{{- end }}

{{- /* Of a long release name the end counts, too, or two releases would share it. */ -}}
{{- define "tachograph.name" -}}
{{- $name := ternary .Release.Name (printf "%s-tachograph" .Release.Name) (contains "tachograph" .Release.Name) -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if gt (len $name) 40 -}}
{{- printf "%s-%s" ($name | trunc 31 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "tachograph.serviceAccount" -}}
{{- $account := .Values.serviceAccount | default dict -}}
{{- if $account.create -}}
{{- $account.name | default (include "tachograph.name" .) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "tachograph.selector" -}}
app.kubernetes.io/name: tachograph
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: exporter
{{- end -}}

{{- /* The labels of an object: those of the chart, and in `more` dictionaries of others, the later one first. */ -}}
{{- define "tachograph.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" "tachograph"
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- range .more }}{{ $own = merge $own (. | default dict) }}{{ end -}}
{{- toYaml (merge $own (.root.Values.commonLabels | default dict)) -}}
{{- end -}}

{{- define "tachograph.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "tachograph.port" -}}{{ .Values.port | default 10024 }}{{- end -}}

{{- /* Where anything but a plain HTTP request is asked for, the kubelet can only look whether somebody listens. */ -}}
{{- define "tachograph.probe" -}}
{{- $tls := .root.Values.tls | default dict -}}
{{- $closed := or $tls.clientAuth (.root.Values.basicAuth).users -}}
{{- $asked := dict "path" .path "port" "metrics" -}}
{{- if $tls.secretName }}{{ $_ := set $asked "scheme" "HTTPS" }}{{ end -}}
{{- $probe := ternary (dict "tcpSocket" (dict "port" "metrics")) (dict "httpGet" $asked) (not (empty $closed)) -}}
{{- toYaml (mergeOverwrite $probe .usual (.own | default dict)) -}}
{{- end -}}

{{- /* The exporter's --web.config.file; empty for plain HTTP without passwords. */ -}}
{{- define "tachograph.webConfig" -}}
{{- $tls := .Values.tls | default dict -}}
{{- with $tls.secretName }}
tls_server_config:
  cert_file: /etc/tachograph/tls/tls.crt
  key_file: /etc/tachograph/tls/tls.key
  {{- if $tls.clientAuth }}
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: /etc/tachograph/tls/ca.crt
  {{- end }}
{{- end }}
{{- with (.Values.basicAuth).users }}
basic_auth_users: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The site's limits, for exporters and rules alike. */ -}}
{{- define "tachograph.limits" -}}
{{- merge (dict) (.Values.limits | default dict) (.Values.prometheusRules.thresholds | default dict) | toYaml -}}
{{- end -}}

{{- define "tachograph.milliseconds" -}}
{{- if hasSuffix "ms" . }}{{ trimSuffix "ms" . }}
{{- else if hasSuffix "s" . }}{{ trimSuffix "s" . | int | mul 1000 }}
{{- else }}{{ trimSuffix "m" . | int | mul 60000 }}{{ end -}}
{{- end -}}

{{- /* A shipped file with the site's addresses and job in place of the shipped ones. */ -}}
{{- define "tachograph.ofSite" -}}
{{- $shipped := .root.Files.Get "files/parameters.yml" | fromYaml -}}
{{- $exporter := trimSuffix "/" .root.Values.exporterUrl -}}
{{- $page := "/blackbox/${run:percentencode}" -}}
{{- $shown := replace "NODE" "${__data.fields.Node}" $shipped.exporter_url -}}
{{- $own := ternary (printf "%s%s" (replace "NODE" "${__data.fields.Node}" $exporter) $page) (printf "%s/RunHung.md" (trimSuffix "/" .root.Values.runbookUrl)) (ne $exporter "") -}}
{{- .text
  | replace $shipped.exporter_url $exporter
  | replace (printf "%s%s" $shown $page) $own
  | replace $shipped.node_job .root.Values.nodeJob
  | replace (printf "%s/" $shipped.runbook_url) (printf "%s/" (trimSuffix "/" .root.Values.runbookUrl))
  | replace $shipped.grafana_url (trimSuffix "/" .root.Values.grafanaUrl) -}}
{{- end -}}

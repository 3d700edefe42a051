{{- define "tachograph.name" -}}
{{- ternary .Release.Name (printf "%s-tachograph" .Release.Name) (contains "tachograph" .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tachograph.selector" -}}
app.kubernetes.io/name: tachograph
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: exporter
{{- end -}}

{{- define "tachograph.labels" -}}
app.kubernetes.io/name: tachograph
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "tachograph.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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

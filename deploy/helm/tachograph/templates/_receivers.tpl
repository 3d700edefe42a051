{{- /* The Secret with the addresses of the receivers. */ -}}
{{- define "tachograph.receiversSecret" -}}
{{- .Values.alertmanagerConfig.secretName | default (printf "%s-receivers" (include "tachograph.name" .)) -}}
{{- end -}}

{{- /* The receivers of the chosen kinds, with the site's addresses. */ -}}
{{- define "tachograph.receivers" -}}
{{- $given := .Values.alertmanagerConfig -}}
{{- $slack := $given.slack | default dict -}}
{{- $telegram := $given.telegram | default dict -}}
{{- $email := $given.email | default dict -}}
{{- $made := list -}}
{{- range $receiver := .Files.Get "files/receivers.yml" | fromYamlArray -}}
  {{- /* The chosen kinds of the first group that has any: a pager gets tickets only where nothing else was chosen. */ -}}
  {{- $serving := list -}}
  {{- range $group := $receiver.servedBy -}}
    {{- if not $serving -}}
      {{- range $given.receivers -}}
        {{- if has . $group }}{{ $serving = append $serving . }}{{ end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- $one := dict "name" $receiver.name -}}
  {{- if or (ne $receiver.name "watchdog") (ne (toString $given.watchdog) "false") -}}
    {{- range $serving | default $given.receivers -}}
      {{- $one = merge $one (get $receiver.ofKind .) -}}
    {{- end -}}
  {{- end -}}
  {{- range $one.emailConfigs -}}
    {{- if not $email.username }}{{ $_ := unset . "authUsername" }}{{ $_ := unset . "authPassword" }}{{ end -}}
  {{- end -}}
  {{- $made = append $made $one -}}
{{- end -}}
{{- toYaml $made
  | replace "'@secret@'" (include "tachograph.receiversSecret" . | quote)
  | replace "'@slack.channel@'" ($slack.channel | default "" | quote)
  | replace "'@slack.devChannel@'" ($slack.devChannel | default $slack.channel | default "" | quote)
  | replace "'@telegram.chatId@'" ($telegram.chatId | default 0 | int64 | toString)
  | replace "'@email.to@'" ($email.to | default "" | quote)
  | replace "'@email.from@'" ($email.from | default "" | quote)
  | replace "'@email.smarthost@'" ($email.smarthost | default "" | quote)
  | replace "'@email.username@'" ($email.username | default "" | quote) -}}
{{- end -}}

{{- /* The keys that the Secret needs, one a line. */ -}}
{{- define "tachograph.receiverKeys" -}}
{{- $keys := list -}}
{{- range regexFindAll "key: \\S+\\n +name: " (include "tachograph.receivers" .) -1 -}}
  {{- $keys = append $keys (regexFind "[a-z-]+\\n" . | trim) -}}
{{- end -}}
{{- uniq $keys | sortAlpha | join "\n" -}}
{{- end -}}

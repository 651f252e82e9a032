{{/*
The manifests are those of deployments/manifests and its options, as their kustomizations
list them. What the values change is changed in the objects, so that there is one source of
all of them.
*/}}

{{/*
A file of the chart. Some tools copy a chart without what its links point to: then nothing at
all would be installed, or an installation be removed, without an error.
*/}}
{{- define "gpushare.file" -}}
{{- $content := .files.Get .path -}}
{{- if not $content -}}
{{- fail (printf "the chart has no %s: this copy lost its links; install the archive that 'make chart' makes" .path) -}}
{{- end -}}
{{- $content -}}
{{- end -}}

{{/* The files that the kustomization of a directory lists: a line each. */}}
{{- define "gpushare.files" -}}
{{- $context := . -}}
{{- $path := printf "%s/kustomization.yaml" .dir -}}
{{- $kustomization := include "gpushare.file" (dict "files" .files "path" $path) | fromYaml -}}
{{- range $kustomization.resources -}}
{{- $path := printf "%s/%s" $context.dir . | clean -}}
{{- if hasSuffix ".yaml" $path }}
{{ $path }}
{{- else }}
{{ include "gpushare.files" (dict "files" $context.files "dir" $path) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The directories that are installed: that of an option has the option's name. Two options change what
deployments/manifests has instead: see gpushare.adapt. */}}
{{- define "gpushare.directories" -}}
files/deployments/manifests
{{- range $option, $on := omit .Values.options "devicePluginPods" "migration" "packNodes" "spreadNodes" }}
{{- if $on }}
files/deployments/options/{{ kebabcase $option }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Not empty where an object is left out. */}}
{{- define "gpushare.leftOut" -}}
{{- $name := .object.metadata.name -}}
{{- if .values.options.migration -}}
{{- if and (eq .object.kind "ValidatingAdmissionPolicyBinding") (eq $name "gpushare-legacy-refuse") }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* Not empty where pods of device plugins may run on nodes of the driver. */}}
{{- define "gpushare.devicePluginPods" -}}
{{- if or .options.devicePluginPods .options.migration }}true{{ end -}}
{{- end -}}

{{/* Not empty where a setting, which is on by default, is off. */}}
{{- define "gpushare.isOff" -}}
{{- if has (get (.settings | default dict) .name | toString | lower) (list "false" "f" "0") }}true{{ end -}}
{{- end -}}

{{/* Changes an object as the values say, in place. */}}
{{- define "gpushare.adapt" -}}
{{- $object := .object -}}
{{- if $object.metadata.namespace }}{{ $_ := set $object.metadata "namespace" .root.Release.Namespace }}{{ end -}}
{{- range $object.subjects }}
{{- if and .namespace (eq .kind "ServiceAccount") }}{{ $_ := set . "namespace" $.root.Release.Namespace }}{{ end -}}
{{- end -}}
{{- if and (eq $object.kind "ClusterRole") (eq $object.metadata.name "gpushare:gpu-kubelet-plugin")
      (include "gpushare.isOff" (dict "settings" .root.Values.kubeletPlugin.settings "name" "CLAIM_STATUS")) -}}
{{- $rules := list -}}
{{- range $object.rules -}}
{{- if not (or (has "resourceclaims/status" .resources) (has "resourceclaims/driver" .resources)) -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $object "rules" $rules -}}
{{- end -}}
{{- if and (eq $object.kind "ClusterRole") (eq $object.metadata.name "gpushare:gpu-kubelet-plugin-pods")
      (include "gpushare.devicePluginPods" .root.Values) -}}
{{- $role := dict "files" .root.Files "path" "files/deployments/options/device-plugin-pods/role.yaml" -}}
{{- $_ := set $object "rules" (include "gpushare.file" $role | fromYaml).rules -}}
{{- end -}}
{{- $component := dict "gpu-kubelet-plugin" "kubeletPlugin" "gpu-mps-supervisor" "mpsSupervisor"
      "gpu-compat-controller" "controller" -}}
{{- if has $object.kind (list "DaemonSet" "Deployment") -}}
{{- $values := index .root.Values (index $component $object.metadata.name) -}}
{{- include "gpushare.workload" (dict "root" .root "object" $object "values" $values) -}}
{{- end -}}
{{- if and .root.Values.options.migration (include "gpushare.onlyWhereAsked" $object) -}}
{{- $asked := dict "matchLabels" (dict "gpu.aliyun.com/legacy" "true") -}}
{{- $_ := set $object.spec "matchResources" (dict "namespaceSelector" $asked) -}}
{{- end -}}
{{- if and (eq $object.kind "MutatingAdmissionPolicy") (eq $object.metadata.name "gpushare-quota") -}}
{{- $_ := set (index $object.spec.variables 0) "expression" (toRawJson .root.Values.quota.schedulers) -}}
{{- end -}}
{{- end -}}

{{/* Not empty for the bindings that a migration restricts to namespaces that ask for it. */}}
{{- define "gpushare.onlyWhereAsked" -}}
{{- if and (eq .kind "ValidatingAdmissionPolicyBinding") (eq .metadata.name "gpushare-legacy-elastic-advice") -}}
true
{{- else if and (hasSuffix "PolicyBinding" .kind) (hasPrefix "gpushare-other-manifests" .metadata.name) -}}
true
{{- else if and (eq .kind "MutatingAdmissionPolicyBinding")
      (regexMatch "^gpushare-legacy-(convert|cpuset(-claims)?|elastic|gang|scheduler)$" .metadata.name) -}}
true
{{- end -}}
{{- end -}}

{{- define "gpushare.image" -}}
{{- with .Values.image -}}
{{- .repository }}
{{- with .tag | default (empty .digest | ternary $.Chart.AppVersion "") }}:{{ . }}{{ end }}
{{- with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "gpushare.workload" -}}
{{- $pod := .object.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $_ := set $container "image" (include "gpushare.image" .root) -}}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy -}}
{{- $_ := set $container "resources" .values.resources -}}
{{- $_ := set $pod "priorityClassName" .values.priorityClassName -}}
{{- $_ := set $pod "tolerations" .values.tolerations -}}
{{- with .values.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end -}}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- range $name, $value := .values.podAnnotations }}
{{- $annotations := $.object.spec.template.metadata.annotations | default dict -}}
{{- $_ := set $annotations $name $value }}{{ $_ := set $.object.spec.template.metadata "annotations" $annotations }}
{{- end -}}
{{- range $name, $value := .values.podLabels }}{{ $_ := set $.object.spec.template.metadata.labels $name $value }}{{ end -}}
{{- range $kind, $rules := .values.affinity }}{{ $_ := set $pod.affinity $kind $rules }}{{ end -}}
{{- if eq .object.kind "Deployment" }}{{ $_ := set .object.spec "replicas" .values.replicas }}{{ end -}}
{{- with .values.maxSurge }}{{ $_ := set $.object.spec.updateStrategy.rollingUpdate "maxSurge" . }}{{ end -}}
{{- if eq .object.metadata.name "gpu-kubelet-plugin" -}}
{{- include "gpushare.plugin" (dict "root" .root "pod" $pod "container" $container) -}}
{{- end -}}
{{- end -}}

{{/* The plugin's own: options that are settings, and directories of the host. */}}
{{- define "gpushare.plugin" -}}
{{- $options := .root.Values.options -}}
{{- $values := .root.Values.kubeletPlugin -}}
{{- $env := .container.env -}}
{{- if $options.migration -}}
{{- $env = append $env (dict "name" "REQUIRED_NODE_LABEL" "value" "gpu.aliyun.com/migrated") -}}
{{- end -}}
{{- if include "gpushare.devicePluginPods" .root.Values -}}
{{- $env = append $env (dict "name" "DEVICE_PLUGIN_PODS" "value" "watch") -}}
{{- end -}}
{{- $directories := list
      (dict "setting" "KUBELET_PLUGINS_DIR" "volume" "plugin" "default" "/var/lib/kubelet/plugins"
        "path" $values.kubeletPluginsDirectoryPath "below" "/gpu.aliyun.com")
      (dict "setting" "KUBELET_REGISTRAR_DIR" "volume" "registrar" "default" "/var/lib/kubelet/plugins_registry"
        "path" $values.kubeletRegistrarDirectoryPath "below" "")
      (dict "setting" "CDI_DIR" "volume" "cdi" "default" "/var/run/cdi" "path" $values.cdiDirectoryPath "below" "")
      (dict "setting" "KUBELET_POD_RESOURCES_SOCKET" "volume" "pod-resources"
        "default" "/var/lib/kubelet/pod-resources" "path" $values.podResourcesDirectoryPath "below" ""
        "file" "/kubelet.sock") -}}
{{- range $directory := $directories -}}
{{- if ne $directory.path $directory.default -}}
{{- $env = append $env (dict "name" $directory.setting "value" (printf "%s%s" $directory.path ($directory.file | default ""))) -}}
{{- $path := printf "%s%s" $directory.path $directory.below -}}
{{- range $.pod.volumes }}{{ if eq .name $directory.volume }}{{ $_ := set .hostPath "path" $path }}{{ end }}{{ end -}}
{{- range $.container.volumeMounts -}}
{{- if eq .name $directory.volume }}{{ $_ := set . "mountPath" $path }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set .container "env" $env -}}
{{- end -}}

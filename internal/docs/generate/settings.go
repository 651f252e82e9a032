// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	controller "github.com/gpushare/dra-driver-gpushare/cmd/gpu-compat-controller/flags"
	plugin "github.com/gpushare/dra-driver-gpushare/cmd/gpu-kubelet-plugin/flags"
	supervisor "github.com/gpushare/dra-driver-gpushare/cmd/gpu-mps-supervisor/flags"
)

// perNode are variables that the manifests set, for each pod or by its place; they are no
// settings of a cluster.
var perNode = []string{"HOST_ROOT", "KUBECONFIG", "NODE_IP", "NODE_NAME", "POD_NAME", "POD_NAMESPACE", "POD_UID"}

// ofTheHost are settings that follow the host, the image or the API server, and that few clusters change: they have a
// table in docs/internals.
var ofTheHost = []string{"CDI_DIR", "CGROUP_ROOT", "CLASS_GRACE", "KUBELET_PLUGINS_DIR", "KUBELET_POD_RESOURCES_SOCKET",
	"KUBELET_REGISTRAR_DIR", "KUBE_API_BURST", "KUBE_API_QPS", "MEMORY_LIMIT_HOOK", "MPS_CHECK", "MPS_DIR",
	"NVIDIA_CDI_HOOK", "NVIDIA_MPS_CONTROL", "NVIDIA_NVML_LIBRARY", "NVML_TIMEOUT", "READY_FILE", "SETTINGS_DIR",
	"SYSFS_ROOT", "TEMPLATE_GRACE"}

// setting is a variable, as each program that reads it has it.
type setting struct {
	programs []string
	flags    []cli.DocGenerationFlag
}

// allSettings are those of the programs, by their variables.
func allSettings() (map[string]*setting, error) {
	out := map[string]*setting{}
	for _, p := range []struct {
		name  string
		flags []cli.Flag
	}{{"plugin", plugin.Flags()}, {"supervisor", supervisor.Flags()}, {"controller", controller.Flags()}} {
		for _, f := range p.flags {
			documented, is := f.(cli.DocGenerationFlag)
			if !is || len(documented.GetEnvVars()) != 1 || documented.GetUsage() == "" {
				return nil, fmt.Errorf("the flag --%s of the %s has no variable or no usage", f.Names()[0], p.name)
			}
			variable := documented.GetEnvVars()[0]
			if slices.Contains(perNode, variable) {
				continue
			}
			if out[variable] == nil {
				out[variable] = &setting{}
			}
			s := out[variable]
			s.programs, s.flags = append(s.programs, p.name), append(s.flags, documented)
		}
	}
	return out, nil
}

// settings is the table of the variables: those of the host, or the others.
func settings(host bool) (table, error) {
	all, err := allSettings()
	t := table{head: []string{"Variable", "Program", "Default", "Meaning"}}
	for _, variable := range slices.Sorted(maps.Keys(all)) {
		if slices.Contains(ofTheHost, variable) != host {
			continue
		}
		s := all[variable]
		programs := strings.Join(s.programs, ", ")
		if len(s.programs) == 3 {
			programs = "all"
		}
		var defaults, usages []string
		for _, f := range s.flags {
			defaults, usages = append(defaults, defaultOf(f)), append(usages, plain(f.GetUsage()))
		}
		t.rows = append(t.rows, []string{code(variable), programs, strings.Join(slices.Compact(defaults), ", "),
			together(s.programs, usages)})
	}
	return t, err
}

// together is what several programs say of a setting.
func together(programs, usages []string) string {
	if usages = slices.Compact(usages); len(usages) == 1 {
		return usages[0]
	}
	for i := range usages {
		usages[i] = upper(programs[i]) + ": " + usages[i]
	}
	return strings.Join(usages, ". ")
}

var noSeconds = regexp.MustCompile(`([mh])0s$`)

// defaultOf is what a setting is where it is not set.
func defaultOf(f cli.DocGenerationFlag) string {
	if text := f.GetDefaultText(); text != "" {
		return text
	}
	value := strings.Trim(strings.Trim(f.GetValue(), "[]"), `"`)
	return code(noSeconds.ReplaceAllString(value, "$1"))
}

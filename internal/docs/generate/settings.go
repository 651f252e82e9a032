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
var ofTheHost = []string{"CDI_DIR", "CGROUP_ROOT", "CLASS_GRACE", "HEALTH_ADDRESS", "KUBELET_PLUGINS_DIR",
	"KUBELET_POD_RESOURCES_SOCKET",
	"KUBELET_REGISTRAR_DIR", "KUBE_API_BURST", "KUBE_API_QPS", "MEMORY_LIMIT_HOOK", "MPS_CHECK", "MPS_DIR",
	"NVIDIA_CDI_HOOK", "NVIDIA_MPS_CONTROL", "NVIDIA_NVML_LIBRARY", "NVML_TIMEOUT", "READY_FILE", "SETTINGS_DIR",
	"SYNC_DEADLINE", "SYSFS_ROOT", "TEMPLATE_GRACE"}

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

// settings is the table of the variables that some programs read, which share a ConfigMap.
func settings(programs ...string) (table, error) {
	all, err := allSettings()
	t := table{head: []string{"Variable", "Default", "Meaning"}}
	for _, variable := range slices.Sorted(maps.Keys(all)) {
		s := all[variable]
		at := slices.IndexFunc(s.programs, func(p string) bool { return slices.Contains(programs, p) })
		if at < 0 || slices.Contains(ofTheHost, variable) {
			continue
		}
		t.rows = append(t.rows, []string{code(variable), defaultOf(s.flags[at]), plain(s.flags[at].GetUsage())})
	}
	return t, err
}

// settingsOfTheHost is the table of those of the host, of all programs.
func settingsOfTheHost() (table, error) {
	t := table{head: []string{"Variable", "Program", "Default", "Meaning"}}
	all, err := allSettings()
	if err != nil {
		return t, err
	}
	for _, variable := range ofTheHost {
		s := all[variable]
		if s == nil {
			return t, fmt.Errorf("no program has the setting %s", variable)
		}
		t.rows = append(t.rows, []string{code(variable), strings.Join(s.programs, ", "), defaultOf(s.flags[0]),
			plain(s.flags[0].GetUsage())})
	}
	return t, nil
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

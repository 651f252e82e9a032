// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// krewName is the plugin's name for krew, which makes "kubectl inspect-cgpu" of it: krew's
// plugins have no names of two words.
const krewName = "inspect-cgpu"

// writeKrew writes the manifest by which `kubectl krew install --manifest-url` installs the
// plugin: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
func (r release) writeKrew(plugins []plugin) error {
	type object = map[string]any
	var platforms []object
	for _, p := range plugins {
		platforms = append(platforms, object{
			"selector": object{"matchLabels": object{"os": p.OS, "arch": p.Arch}},
			"uri":      r.URL + "/" + p.File,
			"sha256":   p.SHA256,
			"bin":      p.Program,
		})
	}
	manifest, err := yaml.Marshal(object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   object{"name": krewName},
		"spec": object{
			"version":          r.Version,
			"homepage":         "https://github.com/gpushare/dra-driver-gpushare",
			"shortDescription": "Show shared GPUs and who has them",
			"description": "Shows how much of each NVIDIA GPU of a cluster is granted to which pods, with\n" +
				"dra-driver-gpushare and with ACK's GPU scheduling.\n",
			"platforms": platforms,
		},
	})
	if err != nil {
		return fmt.Errorf("write the manifest for krew: %w", err)
	}
	return os.WriteFile(filepath.Join(r.Dir, krewName+".yaml"), manifest, 0o644)
}

// writeProvenance writes how the files came about, as an in-toto statement with a SLSA
// provenance (https://slsa.dev/spec/v1.0/provenance). It is not signed.
func (r release) writeProvenance() error {
	sums, err := r.sums(provenanceFile, checksumsFile)
	if err != nil {
		return err
	}
	type object = map[string]any
	var subjects []object
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		subjects = append(subjects, object{"name": name, "digest": object{"sha256": sums[name]}})
	}
	const repository = "https://github.com/gpushare/dra-driver-gpushare"
	statement, err := json.MarshalIndent(object{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          repository + "/tree/main/deployments/release",
				"externalParameters": object{"version": r.Version, "url": r.URL},
				"internalParameters": object{"go": runtime.Version()},
				"resolvedDependencies": []object{
					{"uri": "git+" + repository, "digest": object{"gitCommit": r.Commit}},
				},
			},
			"runDetails": object{"builder": object{"id": repository + "/tree/main/deployments/release/build.sh"}},
		},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the provenance: %w", err)
	}
	return os.WriteFile(filepath.Join(r.Dir, provenanceFile), append(statement, '\n'), 0o644)
}

// writeChecksums writes the sums of all files, as sha256sum --check reads them.
func (r release) writeChecksums() error {
	sums, err := r.sums(checksumsFile)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&b, "%s  %s\n", sums[name], name)
	}
	return os.WriteFile(filepath.Join(r.Dir, checksumsFile), []byte(b.String()), 0o644)
}

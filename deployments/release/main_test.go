// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// built is a small program as Go builds it.
func built(t *testing.T) []byte {
	t.Helper()
	// `go test` does not see what the go command reads.
	if _, err := os.Stat("testdata/program/main.go"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o",
		path,
		"./testdata/program")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// filled is the directory of a release as build.sh leaves it.
func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := built(t)
	for path, content := range map[string]string{
		"dra-driver-gpushare-1.2.3.tgz":             "chart",
		"plugins/linux-amd64/kubectl-inspect_cgpu":  "for linux",
		"plugins/darwin-arm64/kubectl-inspect_cgpu": "for mac",
		"dra-driver-gpushare-image-v1.2.3.tar":      "image",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"plugins/linux-amd64/kubectl-inspect_cgpu", "plugins/darwin-arm64/kubectl-inspect_cgpu",
		"programs/linux-amd64/gpu-kubelet-plugin"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), program, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func run(t *testing.T, dir string, options ...string) error {
	arguments := []string{"release", "--version", "v1.2.3", "--commit", commit, "--url", "https://example.com/v1.2.3",
		"--license", "../../LICENSE"}
	return command().Run(t.Context(), append(append(arguments, options...), dir))
}

// Krew downloads what the manifest names, compares the sum, and runs the program in it.
func TestKrewFindsThePlugin(t *testing.T) {
	dir := filled(t)
	if err := run(t, dir); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "inspect-cgpu.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal(content, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Metadata.Name != "inspect-cgpu" || manifest.Spec.Version != "v1.2.3" ||
		len(manifest.Spec.Platforms) != 2 {
		t.Fatalf("the manifest is %+v", manifest)
	}
	var platforms []string
	for _, p := range manifest.Spec.Platforms {
		name, ok := strings.CutPrefix(p.URI, "https://example.com/v1.2.3/")
		if !ok {
			t.Errorf("the archive is said to be at %s", p.URI)
		}
		if got, err := sum(filepath.Join(dir, name)); err != nil || got != p.SHA256 {
			t.Errorf("the sum of %s is %s (%v), the manifest says %s", name, got, err, p.SHA256)
		}
		files := unpacked(t, filepath.Join(dir, name))
		if len(files) != 2 || files["LICENSE"] == "" {
			t.Errorf("%s has not a program and a licence: %d files", name, len(files))
		}
		platforms = append(platforms, p.Selector.MatchLabels["os"]+"/"+p.Selector.MatchLabels["arch"])
		if files[p.Bin] == "" {
			t.Errorf("%s has no program %s", name, p.Bin)
		}
	}
	if diff := cmp.Diff([]string{"darwin/arm64", "linux/amd64"}, platforms); diff != "" {
		t.Error(diff)
	}
}

func unpacked(t *testing.T, path string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	compressed, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for reader := tar.NewReader(compressed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		file, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(file)
	}
}

func TestChecksumsAreOfEveryFile(t *testing.T) {
	dir := filled(t)
	if err := run(t, dir); err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dir
	output, err := check.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	want := `dra-driver-gpushare-1.2.3.tgz: OK
dra-driver-gpushare-image-v1.2.3.tar: OK
inspect-cgpu.yaml: OK
kubectl-inspect-cgpu-v1.2.3-darwin-arm64.tar.gz: OK
kubectl-inspect-cgpu-v1.2.3-linux-amd64.tar.gz: OK
provenance.json: OK
sbom-gpu-kubelet-plugin-linux-amd64.cdx.json: OK
sbom-kubectl-inspect_cgpu-darwin-arm64.cdx.json: OK
sbom-kubectl-inspect_cgpu-linux-amd64.cdx.json: OK
`
	if diff := cmp.Diff(want, string(output)); diff != "" {
		t.Error(diff)
	}
}

func TestProvenanceNamesFilesAndCommit(t *testing.T) {
	dir := filled(t)
	if err := run(t, dir); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "provenance.json"))
	if err != nil {
		t.Fatal(err)
	}
	var statement struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := json.Unmarshal(content, &statement); err != nil {
		t.Fatal(err)
	}
	if got := statement.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]; got != commit {
		t.Errorf("built of %s", got)
	}
	if len(statement.Subject) != 8 {
		t.Errorf("it is of %d files", len(statement.Subject))
	}
	for _, s := range statement.Subject {
		if got, err := sum(filepath.Join(dir, s.Name)); err != nil || got != s.Digest["sha256"] {
			t.Errorf("%s: %v, %s instead of %s", s.Name, err, s.Digest["sha256"], got)
		}
	}
}

// What is compiled into a program, and in which version.
func TestSBOMNamesModules(t *testing.T) {
	r := release{Version: "v1.2.3", Dir: t.TempDir()}
	// A program with modules: this test.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.writeSBOM(self, "linux-amd64"); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(self)
	file, err := os.Open(filepath.Join(r.Dir, "sbom-"+name+"-linux-amd64.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(file, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	program, err := sum(self)
	if err != nil {
		t.Fatal(err)
	}
	of := bom.Metadata.Component
	if of.Name != name || of.Version != "v1.2.3" || (*of.Hashes)[0].Value != program {
		t.Errorf("it is of %+v", of)
	}
	found := map[string]string{}
	for _, c := range *bom.Components {
		found[c.Name] = c.PackageURL
	}
	if got := found["std"]; got != "pkg:golang/std@"+runtime.Version() {
		t.Errorf("Go is %s", got)
	}
	if got := found["github.com/urfave/cli/v3"]; !strings.HasPrefix(got, "pkg:golang/github.com/urfave/cli/v3@v3.") {
		t.Errorf("a module is %q; there are %v", got, found)
	}
}

func TestSameFilesSameRelease(t *testing.T) {
	first, second := filled(t), filled(t)
	for _, dir := range []string{first, second} {
		if err := run(t, dir); err != nil {
			t.Fatal(err)
		}
	}
	a, err := sum(filepath.Join(first, checksumsFile))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := sum(filepath.Join(second, checksumsFile)); err != nil || a != b {
		t.Errorf("sums differ: %v", err)
	}
	// And if it is done again.
	if err := run(t, first); err != nil {
		t.Fatal(err)
	}
	if b, err := sum(filepath.Join(first, checksumsFile)); err != nil || a != b {
		t.Errorf("sums of a second run differ: %v", err)
	}
}

func TestWhatIsNoRelease(t *testing.T) {
	for name, test := range map[string]struct {
		options []string
		says    string
	}{
		"version without v": {[]string{"--version", "1.2.3"}, "v1.2.3"},
		"short commit":      {[]string{"--commit", "0123abc"}, "whole hash"},
		"no https":          {[]string{"--url", "http://example.com"}, "https://"},
		"no licence":        {[]string{"--license", "missing"}, "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t, filled(t), test.options...); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want %q", err, test.says)
			}
		})
	}
	if err := run(t, t.TempDir()); err == nil || !strings.Contains(err.Error(), "build.sh builds them there") {
		t.Errorf("an empty directory: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
)

// toolchain is what a build depends on besides its sources.
type toolchain struct {
	Version string // as `go env GOVERSION` gives it
	OS      string
	Arch    string
}

// key names what a component is built from: every file of its module, how it
// is built, and with which Go. Two checkouts with the same files have the same
// key wherever they lie.
func key(c Component, files fs.FS, tools toolchain) (string, error) {
	hash := sha256.New()
	recipe, err := json.Marshal(struct {
		Tools    toolchain
		Packages []string
		Links    map[string]string
		Flags    []string
		Env      []string
	}{tools, c.Packages, c.Links, flags(c, "key"), environment(c)})
	if err != nil {
		return "", fmt.Errorf("key of component %s: %w", c.Name, err)
	}
	hash.Write(recipe)
	// WalkDir goes in lexical order, so the key does not depend on the disk.
	err = fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "\n%s %d\n", path, len(content))
		hash.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("key of component %s: read its sources: %w", c.Name, err)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// flags are the arguments of `go build` for a component at a version.
func flags(c Component, version string) []string {
	link := []string{"-s", "-w"}
	if c.Variables != nil {
		variables := c.Variables(version)
		for _, name := range sortedKeys(variables) {
			link = append(link, "-X", name+"="+variables[name])
		}
	}
	if c.Cgo {
		link = append(link, "-extldflags", "-static")
	}
	// As the Makefile and deployments/container/files.sh have them: what the driver and Kubernetes have in
	// common is then compiled once.
	return []string{"-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false",
		"-tags", strings.Join(append([]string{"netgo", "osusergo"}, c.Tags...), ","), "-ldflags", strings.Join(link, " ")}
}

// environment is what a build sets over the caller's environment. CGO_ENABLED
// is the same for all that can be: the packages they share then compile once.
func environment(c Component) []string {
	cgo := "CGO_ENABLED=0"
	if c.Cgo {
		cgo = "CGO_ENABLED=1"
	}
	return []string{cgo, "GOWORK=off"}
}

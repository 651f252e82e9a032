// SPDX-License-Identifier: Apache-2.0

// Package given shows what the driver gave the container that it runs in. The pod of `helm test`
// runs it, in the driver's image, which has no shell.
package given

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// prefixes are those of the variables that say something of GPUs: whatever limits them, and
// whoever sets them.
var prefixes = []string{"ALIYUN_COM_", "CGPU_", "CUDA_", "GPU_ALIYUN_COM_", "NVIDIA_"}

var gpu = regexp.MustCompile(`^nvidia\d+$`)

// Print writes the variables of GPUs in environ, and the NVIDIA device nodes in dev, a line
// each. It is an error if no GPU is among them: the claim came to nothing.
func Print(out io.Writer, environ []string, dev fs.FS) error {
	lines := variables(environ)
	entries, err := fs.Glob(dev, "nvidia*")
	if err != nil {
		return fmt.Errorf("look for the container's device nodes: %w", err)
	}
	for _, name := range entries {
		lines = append(lines, filepath.Join("/dev", name))
	}
	if _, err := fmt.Fprintln(out, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if !slices.ContainsFunc(entries, gpu.MatchString) {
		return errors.New("this container was given no GPU: it has no /dev/nvidia0 or the like. Look at the Events of its " +
			"pod, and at the log of gpu-kubelet-plugin on its node")
	}
	return nil
}

func variables(environ []string) []string {
	var found []string
	for _, variable := range environ {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(variable, prefix) }) {
			found = append(found, variable)
		}
	}
	slices.Sort(found)
	return found
}

// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// install brings in the Debian packages that the components to be built need
// and that are not there; where it may not, the error names them.
func (b *Builder) install(ctx context.Context, components []Component) error {
	var packages []string
	for _, c := range components {
		for _, need := range c.Needs {
			met := exec.CommandContext(ctx, need.Check[0], need.Check[1:]...).Run() == nil
			if !met && !slices.Contains(packages, need.Package) {
				packages = append(packages, need.Package)
			}
		}
	}
	if len(packages) == 0 {
		return nil
	}
	command := "apt-get install --yes --no-install-recommends " + strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("building needs packages that are not installed: as root run `%s`, or install their like on a "+
			"system other than Debian", command)
	}
	b.Progress("installing what the build needs: %s", command)
	script := command + " || { apt-get update && " + command + "; }"
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", command, err, out)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"fmt"
	"os"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// cgpuBackend leaves the enforcement to Alibaba Cloud's kernel module, which
// reads a container's environment when it starts. It exists on ECS instances
// only, and this back end has never been run against it.
type cgpuBackend struct {
	noSetUp
	// proc is the module's directory in procfs.
	proc string
	// keep is whether a container's own environment may not lift its limits.
	keep bool
}

func (cgpuBackend) Name() string                 { return mode.IsolationCGPU }
func (cgpuBackend) Validate([]claim.Grant) error { return nil }

func (b cgpuBackend) Check(string) error {
	if !b.present() {
		return fmt.Errorf("the cGPU kernel module is not loaded: %s does not exist", b.proc)
	}
	return nil
}

func (b cgpuBackend) present() bool {
	_, err := os.Stat(b.proc)
	return err == nil
}

// Adjust: the module works its limits out by itself, as parts of all of the memory.
func (cgpuBackend) Adjust(g *claim.Grant) { g.GPU.ReservedMiB = 0 }

// Edits sets what the module uses, also where the user wants none of the
// legacy environment: without it nothing is limited.
func (b cgpuBackend) Edits(r Group) (*specs.ContainerEdits, error) {
	if !limited(r.Grants[0]) {
		return &specs.ContainerEdits{Env: []string{envDisabled}}, nil
	}
	env := memoryEnv(r)
	if b.keep {
		// The module reads the variable wherever it comes from, which may be a ConfigMap or
		// the image. What the runtime adds by CDI wins.
		env = append(env, envEnabled)
	}
	env = append(env, ack.EnvVisibleDevices+"="+strings.Join(uuids(r.Grants), ","))
	return &specs.ContainerEdits{Env: append(env, weightEnv(r)...)}, nil
}

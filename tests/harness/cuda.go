// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/contexts"
)

// How a program uses CUDA.
const (
	InMPS     = "in MPS"     // limited
	BesideMPS = "beside MPS" // with all of the GPU
)

// CUDA starts a program on a GPU in a pod's only container, with its environment but for
// some variables, and ends it. The error is contexts.ErrBusy where the GPU's driver
// refuses it.
//
// The program does what CUDA does: it is a client of MPS if it can reach a daemon, and asks
// the driver for a context of its own if it cannot. The driver is that of the pod's
// node, with the compute mode that it was told.
func (n *Namespace) CUDA(t *testing.T, pod, uuid string, unset ...string) (how string, err error) {
	t.Helper()
	process := n.process(t, pod)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", process.Pid))
	expect.NoError(t, err)
	for variable := range strings.SplitSeq(string(environ), "\x00") {
		name, pipes, _ := strings.Cut(variable, "=")
		if name != "CUDA_MPS_PIPE_DIRECTORY" || slices.Contains(unset, name) {
			continue
		}
		if client, err := net.Dial("unix", filepath.Join(n.Inside(t, pod, pipes), mps.SocketName)); err == nil {
			return InMPS, client.Close()
		}
	}
	closeContext, err := contexts.Open(n.NodeFile(n.Get(t, pod).Spec.NodeName, "run/nvidia/driver"), uuid)
	if err != nil {
		return "", err
	}
	return BesideMPS, closeContext()
}

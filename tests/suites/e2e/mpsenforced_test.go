// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/contexts"
)

// inMPSOrRefused checks that a program in the pod's container is a client of MPS, whatever
// it does with its environment, or does not run.
func inMPSOrRefused(t *testing.T, ns *harness.Namespace, pod, uuid string) {
	t.Helper()
	if how, err := ns.CUDA(t, pod, uuid); err != nil || how != harness.InMPS {
		t.Errorf("a program of %s runs %q (%v)", pod, how, err)
	}
	refused(t, ns, pod, uuid, "CUDA_MPS_PIPE_DIRECTORY")
}

func refused(t *testing.T, ns *harness.Namespace, pod, uuid string, unset ...string) {
	t.Helper()
	if how, err := ns.CUDA(t, pod, uuid, unset...); !errors.Is(err, contexts.ErrBusy) {
		t.Errorf("a program of %s without the variables %q runs %q (%v)", pod, unset, how, err)
	}
}

// closedWithoutServer checks that no program of the pod runs on a GPU whose daemon is down.
func closedWithoutServer(t *testing.T, ns *harness.Namespace, pod, uuid string) {
	t.Helper()
	harness.Eventually(t, "the daemon to be down", func(context.Context) error {
		if cluster.MPS(faultyNode).Check(uuid) == nil {
			return errors.New("it serves")
		}
		return nil
	})
	refused(t, ns, pod, uuid)
	refused(t, ns, pod, uuid, "CUDA_MPS_PIPE_DIRECTORY")
}

// serverKilled ends the MPS server of a GPU alone: the GPU gets another one.
func serverKilled(t *testing.T, ns *harness.Namespace, pod, uuid string) {
	t.Helper()
	expect.NoError(t, cluster.MPSServer(t, faultyNode, uuid).Kill())
	harness.Eventually(t, "the daemon to be started again", func(context.Context) error {
		status, err := cluster.MPS(faultyNode).Status(uuid)
		if err == nil && !strings.Contains(status.Reason, "MPS server") {
			err = fmt.Errorf("its status is %s", statusOf(t, uuid))
		}
		return err
	})
	harness.Eventually(t, "the daemon to serve again", func(context.Context) error {
		return cluster.MPS(faultyNode).Check(uuid)
	})
	inMPSOrRefused(t, ns, pod, uuid)
}

func driverRoot(node string) string { return cluster.NodeFile(node, "run/nvidia/driver") }

// openToAll is nil if any program could use a GPU.
func openToAll(node, uuid string) error {
	closeContext, err := contexts.Open(driverRoot(node), uuid)
	if err != nil {
		return err
	}
	return closeContext()
}

// waitOpenToAll waits until the compute mode of a GPU has been put back.
func waitOpenToAll(t *testing.T, node, uuid string) {
	t.Helper()
	harness.Eventually(t, "GPU "+uuid+" to be open to all", func(context.Context) error { return openToAll(node, uuid) })
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func alwaysRestarted(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }

// startsAgain ends the container of a pod and waits until the kubelet has started it
// again, for which the claim's CDI spec has to be there.
func startsAgain(t *testing.T, ns *harness.Namespace, pod string) {
	t.Helper()
	before := ns.Containers(t)[pod]
	ns.KillContainer(t, pod)
	harness.Eventually(t, "the container of pod "+pod+" to run again",
		func(ctx context.Context) error { return ns.CheckRestarted(ctx, pod, before) })
	ns.SeesItsGPUs(t, pod, "main", ns.Granted(t, pod))
}

// recordsByClaim are what a node keeps of the namespace's claims.
func recordsByClaim(ctx context.Context, ns *harness.Namespace, node string) (map[types.UID]state.Record, error) {
	records, err := ns.Records(node)
	if err != nil {
		return nil, err
	}
	out := map[types.UID]state.Record{}
	for _, record := range records {
		if record.Namespace == ns.Name {
			out[record.UID] = record
		}
	}
	return out, ctx.Err()
}

// keepsAgain waits until a node keeps what it kept before.
func keepsAgain(t *testing.T, ns *harness.Namespace, node string, before map[types.UID]state.Record) {
	t.Helper()
	harness.Eventually(t, "node "+node+" to keep what it knew of its claims", func(ctx context.Context) error {
		now, err := recordsByClaim(ctx, ns, node)
		if diff := expect.Diff(before, now); err == nil && diff != nil {
			err = fmt.Errorf("before and now %w", diff)
		}
		return err
	})
}

// What runs goes on, can be started again and counts, although all that the node knew
// of it is gone.
func TestStateDirectoryLost(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "kill")
	cluster.FreshPlugin(t, "kill")
	ns := cluster.Namespace(t)
	ns.Template(t, "seven", harness.Requests(harness.Share("gpu", "7Gi")))
	ns.Run(t, sevens(early, alwaysRestarted)...)
	running := ns.Containers(t)
	before, err := recordsByClaim(t.Context(), ns, "kill")
	if err != nil || len(before) != len(early) {
		t.Fatalf("node kill keeps %d records of %d claims: %v", len(before), len(early), err)
	}

	expect.NoError(t, os.RemoveAll(cluster.ClaimsDir("kill")))
	cluster.KillPlugin(t, "kill")()
	keepsAgain(t, ns, "kill", before)
	ns.KeptRunning(t, running)
	startsAgain(t, ns, early[0])

	// Once more, and nobody starts the plugin again.
	began := time.Now()
	expect.NoError(t, os.RemoveAll(cluster.ClaimsDir("kill")))
	keepsAgain(t, ns, "kill", before)
	t.Logf("the records are there again after %s", since(began))
	ns.Run(t, sevens(late)...)
	isFullAndFair(t, ns, slices.Concat(early, late))
}

// kubectl delete node, and a kubelet that registers the node again: another object,
// with another UID. The garbage collector removes what the old one owned.
func TestNodeObjectReplaced(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	cluster.FreshPlugin(t, "bad")
	t.Cleanup(func() {
		// Nobody but a kubelet that starts makes the node's object.
		_, err := cluster.Client.CoreV1().Nodes().Get(harness.Context(t), "bad", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			cluster.Tool(t, "node", "restart-kubelet", "bad")
		}
	})
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("before", "bad", harness.FromTemplate("one"), alwaysRestarted))
	running := ns.Containers(t)
	began := time.Now()
	ns.MustKubectl(t, "delete", "node", "bad")
	cluster.Tool(t, "node", "restart-kubelet", "bad")
	node := harness.Get(t, cluster.Client.CoreV1().Nodes(), "bad")
	cluster.Slice(t, "bad", "is the new node's", func(slice *resourceapi.ResourceSlice) error {
		if owners := slice.OwnerReferences; len(owners) != 1 || owners[0].UID != node.UID {
			return fmt.Errorf("its owners are %+v, the node's UID is %s", owners, node.UID)
		}
		return hasDevices(4)(slice)
	})
	ns.Run(t, harness.Pod("after", "bad", harness.FromTemplate("one")))
	t.Logf("a new pod runs %s after the node was deleted", since(began))
	ns.KeptRunning(t, running)
}

// The plugin's mount is then of a directory that nobody else sees.
func TestCDIDirectoryRemoved(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	cluster.FreshPlugin(t, "bad")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("before", "bad", harness.FromTemplate("one"), alwaysRestarted))
	began := time.Now()
	expect.NoError(t, os.RemoveAll(cluster.CDIDir("bad")))
	cluster.WaitNodeEvent(t, "bad", began, "GPUDirectoryLost", "/var/run/cdi")
	waitSpecs(t, "bad", 1)
	t.Logf("the spec is there again after %s", since(began))
	startsAgain(t, ns, "before")
	ns.Run(t, harness.Pod("after", "bad", harness.FromTemplate("one")))
}

// The plugin finds the MPS daemons again by itself, and the supervisor when it is replaced.
func TestMPSDirectoryRemoved(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "modes")
	cluster.FreshPlugin(t, "modes")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", -1, "memory", "1Gi")))
	ns.Run(t, harness.Pod("before", "modes", harness.FromTemplate("one")))
	began := time.Now()
	// The supervisor may write a file into a directory that is being emptied.
	harness.Eventually(t, "the directory to be removed", func(context.Context) error {
		return os.RemoveAll(cluster.NodeFile("modes", "run/gpushare"))
	})
	cluster.WaitNodeEvent(t, "modes", began, "GPUDirectoryLost", "MPS_DIR")
	cluster.ReplaceSupervisor(t, "modes")
	ns.Run(t, harness.Pod("after", "modes", harness.FromTemplate("one")))
	t.Logf("a new pod runs after %s", since(began))
}

// Containers of prepared claims are started again without the driver being asked.
func TestCDISpecsRemoved(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("before", "bad", harness.FromTemplate("one"), alwaysRestarted))
	began := time.Now()
	removeAll(t, cluster.NodeFile("bad", "run/cdi", cdi.SpecName("*")+".json"))
	startsAgain(t, ns, "before")
	t.Logf("a container that ended meanwhile runs again after %s", since(began))
}

// The kubelet takes a driver whose socket is gone for one that was taken away.
func TestPluginSocketsRemoved(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	for name, socket := range map[string]string{
		"registrar": "var/lib/kubelet/plugins_registry/gpu.aliyun.com*.sock",
		"dra":       "var/lib/kubelet/plugins/gpu.aliyun.com/dra*.sock",
	} {
		t.Run(name, func(t *testing.T) {
			// The plugin may be about to restart, for what was removed before.
			cluster.ReplacePlugin(t, "bad")
			began := time.Now()
			removeAll(t, cluster.NodeFile("bad", socket))
			cluster.WaitNodeEvent(t, "bad", began, "GPUDirectoryLost", filepath.Base(filepath.Dir(socket)))
			ns.Create(t, harness.Pod(name, "bad", harness.FromTemplate("one")))
			ns.WaitRunning(t, name)
			t.Logf("a new pod runs after %s", since(began))
		})
	}
}

// waitSpecs waits until a node has CDI specs of so many claims.
func waitSpecs(t *testing.T, node string, want int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%d CDI specs on node %s", want, node), func(context.Context) error {
		uids, err := cluster.CDIClaims(node)
		if err == nil && len(uids) != want {
			err = fmt.Errorf("there are %d", len(uids))
		}
		return err
	})
}

// removeAll removes the files of a pattern, of which there has to be one.
func removeAll(t *testing.T, pattern string) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err == nil && len(paths) == 0 {
		err = errors.New("there is none")
	}
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	expect.NoErrorf(t, err, "remove %s", pattern)
}

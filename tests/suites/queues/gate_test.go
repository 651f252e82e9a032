// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package queues

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/component"
)

// The classes of shares select by mode, for Kueue's sake. So no slice has a share's mode and a GPU for a single claim:
// the API server of a cluster whose feature gate is off, beside one where it is on, refuses what the plugin writes when
// it has dropped the field, keeps the field of a slice that has it, and tells a dry run.
func TestNoShareIsStoredWithoutItsGate(t *testing.T) {
	plugin := cluster.Plugin(t, node)
	as := cluster.ConfigOf(t, plugin.Namespace, plugin.Spec.ServiceAccountName, plugin)
	on := client(t, as)
	as.Host = otherServer(t, "--feature-gates=DRAConsumableCapacity=false")
	off := client(t, as)
	ctx := t.Context()
	slices, err := on.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node})
	if err != nil || len(slices.Items) != 1 {
		t.Fatalf("node %s has %d ResourceSlices, %v", node, len(slices.Items), err)
	}
	stored := &slices.Items[0]
	made := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: stored.Name}, Spec: stored.Spec}
	_, err = on.ResourceV1().ResourceSlices().Create(ctx, made, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("where the gate is on, the slice is refused: %v", err)
	}
	_, err = off.ResourceV1().ResourceSlices().Create(ctx, made, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "would be stored as one for a single claim") {
		t.Errorf("where the gate is off, to create the slice is answered by %v", err)
	}
	updated, err := off.ResourceV1().ResourceSlices().Update(ctx, stored, metav1.UpdateOptions{})
	if err != nil || !allShared(updated) {
		t.Errorf("where the gate is off, the slice that is there becomes %+v, %v", updated, err)
	}
	asked := made.DeepCopy()
	asked.ObjectMeta = metav1.ObjectMeta{GenerateName: "preflight-"}
	told, err := off.ResourceV1().ResourceSlices().Create(ctx, asked, metav1.CreateOptions{DryRun: harness.DryRun})
	if err != nil || allShared(told) {
		t.Errorf("where the gate is off, a dry run is answered by %+v, %v", told, err)
	}
}

// allShared reports whether each device of a slice takes several claims.
func allShared(slice *resourceapi.ResourceSlice) bool {
	for _, d := range slice.Spec.Devices {
		if !ptr.Deref(d.AllowMultipleAllocations, false) {
			return false
		}
	}
	return len(slice.Spec.Devices) > 0
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	expect.NoError(t, err)
	return c
}

// otherServer starts a second API server of the cluster, with further flags, until the test ends. It returns its URL.
func otherServer(t *testing.T, flags ...string) string {
	t.Helper()
	first, err := harness.FindProcess(func(cmdline, _ string) bool {
		program, arguments, _ := strings.Cut(cmdline, "\x00")
		return filepath.Base(program) == "kube-apiserver" &&
			strings.Contains(arguments, filepath.Join(cluster.Dir, "pki")+"/")
	})
	expect.NoErrorf(t, err, "the API server")
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first.Pid))
	expect.NoErrorf(t, err, "the API server's flags")
	// Of a flag that is there twice, the second counts.
	port := component.FreePort(t)
	arguments := append(strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00"),
		append(flags, fmt.Sprintf("--secure-port=%d", port))...)
	var log harness.Output
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdout, command.Stderr = &log, &log
	expect.NoErrorf(t, command.Start(), "start a second API server")
	t.Cleanup(func() {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("end the second API server: %v", err)
		}
		// What it returns says nothing of the test.
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the second API server said:\n%s", log.String())
		}
	})
	config := rest.CopyConfig(cluster.Config)
	config.Host = fmt.Sprintf("%s:%d", strings.TrimSuffix(config.Host, ":443"), port)
	other := client(t, config)
	harness.Eventually(t, "the second API server to answer", func(ctx context.Context) error {
		return other.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	return config.Host
}

// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
)

// kubelet answers what it is set to, and counts how often.
type kubelet struct {
	containers map[deviceplugin.Container]deviceplugin.Devices
	err        error
	asked      int
}

func (k *kubelet) Devices(context.Context) (map[deviceplugin.Container]deviceplugin.Devices, error) {
	k.asked++
	return k.containers, k.err
}

// gave sets that it gave the containers of these pods, by name, that device of the resource each.
func (k *kubelet) gave(resource corev1.ResourceName, devices map[string]string) {
	k.err, k.containers = nil, map[deviceplugin.Container]deviceplugin.Devices{}
	for pod, id := range devices {
		k.containers[deviceplugin.Container{Namespace: "old", Pod: pod, Name: "c"}] = deviceplugin.Devices{
			Resources: []corev1.ResourceName{resource}, IDs: []string{id}}
	}
}

// Where no pod of a device plugin runs, no pod is read, and nothing waits for the kubelet.
func TestPodsThatAreNotWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	pods := KubeletOnly(podresources.Client{Socket: filepath.Join(t.TempDir(), "none.sock")})
	m := &gpu.Machine{GPUs: gpusOfNode}
	for name, ask := range map[string]func(context.Context, *gpu.Machine) (held.Reserved, error){
		"publisher": pods.Observe, "claim": pods.Reserved} {
		got, err := ask(ctx, m)
		expect.NoErrorf(t, err, "%s", name)
		for _, g := range gpusOfNode {
			if held := got.GPU(g.UUID); len(held.Pods) > 0 {
				t.Errorf("%s: of %s is held %+v", name, g.UUID, held)
			}
		}
	}
}

// A kubelet that does not answer is asked again, and that is logged once.
func TestKubeletThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		buffer, _ := logger.GetSink().(ktesting.Underlier)
		ctx := klog.NewContext(t.Context(), logger)
		k := &kubelet{}
		pods, m := KubeletOnly(k), &gpu.Machine{GPUs: gpusOfNode}
		logged := 0
		for i, step := range []struct {
			err error
			// again is that the publisher looks again, by which the next one is asked.
			again, logs bool
		}{
			{errors.New("no socket"), true, true},
			{errors.New("no socket"), true, false},
			{nil, false, false},
			{errors.New("it lists nothing yet"), true, true},
			{nil, false, false},
		} {
			time.Sleep(goodFor)
			k.err = step.err
			got, err := pods.Observe(ctx, m)
			if again := got.Outdated; err != nil || again != step.again {
				t.Errorf("step %d: it is looked again: %t, %v, want %t", i, again, err, step.again)
			}
			now := strings.Count(buffer.GetBuffer().String(), "The kubelet does not say")
			if logs := now > logged; logs != step.logs {
				t.Errorf("step %d: it is logged: %t, want %t", i, logs, step.logs)
			}
			logged = now
		}
	})
}

// What the kubelet said stays so while it does not answer, as while it is restarted.
func TestKubeletThatDoesNotAnswerAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubelet{}
		pods, m := KubeletOnly(k), &gpu.Machine{GPUs: gpusOfNode}
		closed := func(when string, want bool) {
			t.Helper()
			time.Sleep(goodFor)
			for _, ask := range []func(context.Context, *gpu.Machine) (held.Reserved, error){
				pods.Observe, pods.Reserved} {
				got, err := ask(t.Context(), m)
				if err != nil || got.GPU("GPU-0").Whole != want || got.GPU("GPU-1").Whole != want {
					t.Errorf("%s: %+v, %v, want all GPUs to be closed: %t", when, got, err, want)
				}
			}
		}
		k.gave("aliyun.com/gpu-mem", map[string]string{"a": "0"})
		closed("a pod has a share", true)
		k.containers, k.err = nil, errors.New("it lists nothing yet")
		closed("it is restarted", true)
		closed("and again", true)
		k.gave("aliyun.com/gpu-mem", nil)
		closed("the pod has ended", false)
	})
}

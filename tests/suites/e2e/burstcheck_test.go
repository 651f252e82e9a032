// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/ledger"
)

// allocations is what was seen of the claims of the cluster, as the API server has them,
// at several times.
type allocations struct {
	mu    sync.Mutex
	looks []ledger.Look
}

func (a *allocations) add(look ledger.Look) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looks = append(a.looks, look)
}

// observeAllocations looks at the claims until the test ends, or stop is called.
func observeAllocations(t *testing.T) (a *allocations, stop func()) {
	t.Helper()
	const interval = 500 * time.Millisecond
	a = &allocations{}
	memory := memoryOfDevices(t)
	stop = harness.Meanwhile(t, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		uses, err := allAllocated(ctx, memory)
		if err != nil {
			// Whether it may fail now is for the end: nobody knows yet when the API server
			// was killed.
			if ctx.Err() == nil {
				a.add(ledger.Look{At: time.Now(), Err: err})
			}
			return nil
		}
		a.add(ledger.Look{At: time.Now(), Conflicts: ledger.Conflicts(uses)})
		return nil
	})
	return a, stop
}

// allAllocated is what all claims of the cluster hold now.
func allAllocated(ctx context.Context, memory map[string]int64) ([]ledger.Use, error) {
	list, err := cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var uses []ledger.Use
	for _, claim := range list.Items {
		held, err := allocated(&claim, memory)
		if err != nil {
			return nil, err
		}
		uses = append(uses, held...)
	}
	return uses, nil
}

// memoryOfDevices is the memory of all devices that are published, by pool and name.
func memoryOfDevices(t *testing.T) map[string]int64 {
	t.Helper()
	nodes, err := cluster.NodeNames()
	expect.NoError(t, err)
	// What a plugin published is gone if it was away for long before the test.
	for _, node := range nodes {
		cluster.GPUs(t, node)
	}
	list, err := cluster.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	memory := map[string]int64{}
	for _, slice := range list.Items {
		for _, device := range slice.Spec.Devices {
			capacity := device.Capacity[v1alpha1.CapMemory]
			memory[slice.Spec.Pool.Name+"/"+device.Name] = capacity.Value.Value()
		}
	}
	return memory
}

// allocated is what a claim holds, at no time in particular: memory of shared GPUs,
// and all of others. The holder is the pod that the claim was made for.
func allocated(claim *resourceapi.ResourceClaim, memory map[string]int64) ([]ledger.Use, error) {
	if claim.Status.Allocation == nil {
		return nil, nil
	}
	holder := "claim " + claim.Name
	if owner := metav1.GetControllerOf(claim); owner != nil {
		holder = string(owner.UID)
	}
	var uses []ledger.Use
	for _, result := range claim.Status.Allocation.Devices.Results {
		indices, _, err := devices.ParseDeviceName(result.Device)
		if err != nil {
			return nil, err
		}
		use := ledger.Use{Holder: holder, Part: 1, Whole: 1, To: time.Time{}.Add(1)}
		if consumed, shared := result.ConsumedCapacity[v1alpha1.CapMemory]; shared {
			use.Part, use.Whole = consumed.Value(), memory[result.Pool+"/"+result.Device]
			if use.Whole == 0 {
				return nil, fmt.Errorf("claim %s/%s holds device %s/%s, which is not published", claim.Namespace, claim.Name,
					result.Pool, result.Device)
			}
		}
		for _, index := range indices {
			use.GPU = fmt.Sprintf("%s GPU %d", result.Pool, index)
			uses = append(uses, use)
		}
	}
	return uses, nil
}

// check fails the test where a GPU was allocated twice and the outage of the API server does
// not explain it, see ledger.Judge, and where claims could not be looked at although it was
// there. Where it does, the driver refuses one of the pods, if the other still runs, and
// gpu-compat-controller gets it going again; whether any two did run is to be seen by what the
// containers printed. It returns the UIDs of the pods that were allocated such a GPU.
func (a *allocations) check(t *testing.T, outage ledger.Outage) (explained map[string]bool) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	wrong, explained := ledger.Judge(a.looks, outage)
	for _, text := range wrong {
		t.Error(text)
	}
	t.Logf("claims looked at %d times; %d pods were allocated a GPU that others were, by a scheduler that lost its API "+
		"server", len(a.looks), len(explained))
	return explained
}

// refusedMost is how many pods of the burst may have been refused for so long that they were deleted, for one loss of
// the API server. Each is a write that was under way when it was lost.
const refusedMost = 10

// checkRefused checks that pods were refused only where the loss of the API server explains it.
func (b *burst) checkRefused(t *testing.T, explained map[string]bool) {
	t.Helper()
	harness.Eventually(t, "the last Events to be read", b.deleteRefused)
	for uid, what := range b.refused {
		if !explained[string(uid)] {
			t.Errorf("%s, and others were not allocated its GPU while the API server was away or soon after", what)
		}
	}
	if len(b.refused) > refusedMost {
		t.Errorf("%d pods were refused and deleted, want %d at most", len(b.refused), refusedMost)
	}
	t.Logf("of pods that were allocated a GPU that others held, %d were deleted", len(b.refused))
}

// checkContainers checks by what the containers have printed that each saw as much as
// it asked for, and that nothing was in two hands at any time.
func (b *burst) checkContainers(t *testing.T) {
	t.Helper()
	var uses []ledger.Use
	served := 0
	for i, ns := range b.namespaces {
		logs, err := ns.ContainerLogs()
		expect.NoError(t, err)
		byPod := map[types.UID][]harness.ContainerLog{}
		for _, log := range logs {
			byPod[log.UID] = append(byPod[log.UID], log)
		}
		pods, err := b.pods[i].List(labels.Everything())
		expect.NoError(t, err)
		for _, pod := range pods {
			if b.late[pod.UID] != "" {
				continue
			}
			held, err := usesOf(pod, byPod[pod.UID])
			if err != nil {
				t.Errorf("pod %s/%s: %v", pod.Namespace, pod.Name, err)
				continue
			}
			uses, served = append(uses, held...), served+1
		}
	}
	for _, conflict := range ledger.Conflicts(uses) {
		t.Errorf("by what the containers saw: %s", conflict)
	}
	if len(b.late) > lateMost {
		t.Errorf("%d pods were not started in time by the container runtime: %v", len(b.late), b.late)
	} else if len(b.late) > 0 {
		t.Logf("not started in time by the container runtime, and created again by their Jobs: %v", b.late)
	}
	t.Logf("%d pods saw what they asked for, in %d shares and GPUs", served, len(uses))
}

// usesOf is what the containers of a pod of the burst held, which have to be as many
// and have seen as much as it asked for.
func usesOf(pod *corev1.Pod, logs []harness.ContainerLog) ([]ledger.Use, error) {
	kind, err := strconv.Atoi(pod.Labels[kindLabel])
	if err != nil {
		return nil, err
	}
	asked := map[string]corev1.ResourceList{}
	for _, container := range burstPod(kind).Spec.Containers {
		asked[container.Name] = container.Resources.Limits
	}
	if len(logs) != len(asked) {
		return nil, fmt.Errorf("%d containers printed something, want %d", len(logs), len(asked))
	}
	var uses []ledger.Use
	for _, log := range logs {
		held, err := containerUses(log, asked[log.Container], burstOf[kind].gpus)
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", log.Container, err)
		}
		uses = append(uses, held...)
	}
	return uses, nil
}

var probeGPU = regexp.MustCompile(`^/dev/nvidia[0-9]+ `)

// containerUses is what a container held from its first line to its last, by its
// environment and its device nodes; one that has not ended holds it until now.
func containerUses(log harness.ContainerLog, asked corev1.ResourceList, count int64) ([]ledger.Use, error) {
	if len(log.Lines) == 0 {
		return nil, errors.New("it printed nothing")
	}
	env, gpus := printedEnv(log), printedGPUs(log)
	use := ledger.Use{Holder: log.Pod + "/" + log.Container, Part: 1, Whole: 1, From: log.Lines[0].At, To: time.Now()}
	if last := log.Lines[len(log.Lines)-1]; last.Text == "done" {
		use.To = last.At
	}
	memory, compute := asked[ack.ResourceMemory], asked[ack.ResourceCores]
	if whole := asked[ack.ResourceGPUs]; !whole.IsZero() {
		count = whole.Value()
	}
	if int64(len(gpus)) != count {
		return nil, fmt.Errorf("it sees the GPUs %q, want %d", gpus, count)
	}
	if !memory.IsZero() {
		var err error
		if use.Part, err = variable(env, "ALIYUN_COM_GPU_MEM_CONTAINER", memory.Value()/count); err != nil {
			return nil, err
		}
		if use.Whole, err = strconv.ParseInt(env["ALIYUN_COM_GPU_MEM_DEV"], 10, 64); err != nil || use.Whole <= 0 {
			return nil, fmt.Errorf("ALIYUN_COM_GPU_MEM_DEV is %q", env["ALIYUN_COM_GPU_MEM_DEV"])
		}
	}
	var uses []ledger.Use
	for _, g := range gpus {
		use.GPU = log.Node + " " + g
		uses = append(uses, use)
		if compute.IsZero() {
			continue
		}
		const step = 5 // percent
		weight, err := variable(env, "ALIYUN_COM_GPU_SCHD_WEIGHT", compute.Value()/step)
		if err != nil {
			return nil, err
		}
		part := use
		part.GPU, part.Part, part.Whole = "the compute of "+use.GPU, weight*step, 100
		uses = append(uses, part)
	}
	return uses, nil
}

// printedEnv is the environment that a container has printed.
func printedEnv(log harness.ContainerLog) map[string]string {
	env := map[string]string{}
	for _, line := range log.Lines {
		if name, value, ok := strings.Cut(line.Text, "="); ok {
			env[name] = value
		}
	}
	return env
}

// printedGPUs are the device nodes of GPUs that a container has printed.
func printedGPUs(log harness.ContainerLog) []string {
	var gpus []string
	for _, line := range log.Lines {
		if probeGPU.MatchString(line.Text) {
			gpus = append(gpus, strings.Fields(line.Text)[0])
		}
	}
	return gpus
}

func variable(env map[string]string, name string, want int64) (int64, error) {
	got, err := strconv.ParseInt(env[name], 10, 64)
	if err != nil || got != want {
		return 0, fmt.Errorf("%s is %q, want %d", name, env[name], want)
	}
	return got, nil
}

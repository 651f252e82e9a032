// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Pods of one Deployment land where as many pods of their own would.
func TestPodsOfAWorkloadLandWherePodsOfTheirOwnWould(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	fits, waits := 0, 0
	for i := range 60 {
		together, apart := newSite(t), newSite(t)
		for n := range 1 + random.IntN(4) {
			name, gpus, kind := fmt.Sprintf("n%d", n), 1+random.IntN(3), random.IntN(4)
			cpus := allocatable(map[corev1.ResourceName]string{"cpu": fmt.Sprint(2 + random.IntN(8)), "pods": "20"})
			for _, s := range []*site{together, apart} {
				switch kind {
				case 0:
					s.spreadNode(name, gpus)
				case 1:
					s.node(name, gpus, mode.CoreMem, cpus)
				default:
					s.node(name, gpus, mode.Share, cpus)
				}
			}
		}
		limits := fmt.Sprintf("aliyun.com/gpu-mem: %d, cpu: 1", 1+random.IntN(15))
		replicas := 1 + random.IntN(10)
		together.read(t, workload("Deployment", replicas, limits))
		var pods []string
		for n := range replicas {
			pods = append(pods, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: train-%d}\nspec: {containers: "+
				"[{name: main, resources: {limits: {%s}}}]}\n", n, limits))
		}
		apart.read(t, strings.Join(pods, "---\n"))
		want, got := apart.plan(t), together.plan(t)
		if !slices.Equal(verdicts(got), verdicts(want)) {
			t.Fatalf("situation %d, %d of %s: they land at\n%q, pods of their own at\n%q", i, replicas, limits, verdicts(got),
				verdicts(want))
		}
		fits, waits = fits+got.Fits, waits+got.Waits
	}
	if fits < 50 || waits < 50 {
		t.Errorf("%d fit, %d wait: too few to show anything", fits, waits)
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// manyWays is a template of more requests than a node of four GPUs can serve at once, each of which it can serve in
// four ways, and a Deployment of two pods that use it.
func manyWays(labels string) string {
	var requests []string
	for i := range 32 {
		requests = append(requests, fmt.Sprintf("{name: r%d, exactly: {deviceClassName: share.gpu.aliyun.com, "+
			"capacity: {requests: {memory: 2Gi}}}}", i))
	}
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: many}
spec: {spec: {devices: {requests: [%s]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: train}
spec:
  replicas: 2
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train%s}}
    spec:
      containers: [{name: main, image: train, resources: {claims: [{name: gpus}]}}]
      resourceClaims: [{name: gpus, resourceClaimTemplateName: many}]
`, strings.Join(requests, ", "), labels)
}

// A search that was cut off is counted apart: those pods neither fit nor wait.
func TestPodsOfWhichItIsNotKnownAreCountedApart(t *testing.T) {
	s := newSite(t)
	s.node("n1", 4, mode.Share)
	s.read(t, manyWays("")+"---\n"+workload("StatefulSet", 1, "aliyun.com/gpu-mem: 3"))
	made := s.plan(t)
	if made.Fits != 1 || made.Waits != 0 || made.Unsearched != 2 || made.AllFit() {
		t.Errorf("%d fit, %d wait, of %d it is not known", made.Fits, made.Waits, made.Unsearched)
	}
	text := printed(t, made)
	expect.Says(t, text, "1 of 3 pods would find room, 0 would wait; of 2 it is not known, as nodes were not searched to "+
		"the end.", "  not searched to the end\n", "2 pods: whether a node has room for its GPUs is not known: 1 node "+
		"that it can be on was not searched to the end: the requests can be met in too many ways.")
	if strings.Contains(text, "would wait\n") || strings.Contains(text, "no node has room") {
		t.Errorf("it says of pods of which it is not known that they wait:\n%s", text)
	}
}

// A gang some of whose pods are not known to find room is not known to wait.
func TestAGangIsNotKnownToWaitWhereASearchIsCutOff(t *testing.T) {
	testneeds.Time(t)
	const gang = `, pod-group.scheduling.sigs.k8s.io/name: g, pod-group.scheduling.sigs.k8s.io/min-available: "%d"`
	for least, unsearched := range map[int]int{3: 3, 4: 2} {
		s := newSite(t)
		s.node("n1", 4, mode.Share)
		s.read(t, manyWays(fmt.Sprintf(gang, least))+"---\n"+
			workload("StatefulSet", 1, "aliyun.com/gpu-mem: 3", fmt.Sprintf(gang, least)))
		made := s.plan(t)
		if made.Fits != 0 || made.Unsearched != unsearched || made.Waits != 3-unsearched {
			t.Errorf("a gang of 3 that needs %d: %d fit, %d wait, of %d it is not known\n%s", least, made.Fits, made.Waits,
				made.Unsearched, printed(t, made))
		}
		if least == 3 && !slices.ContainsFunc(strings.Split(printed(t, made), "\n"), func(line string) bool {
			return strings.Contains(line, "1 would find room at once, and it needs 3; of 2 more it is not known")
		}) {
			t.Errorf("it does not say so:\n%s", printed(t, made))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package upgrade

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// fill asks for what is left of node share, of which all is counted, and returns the
// names of the pods that have it now.
func (u *upgrade) fill(t *testing.T) []string {
	t.Helper()
	const units, seven = 15, 7
	var free int64
	for _, granted := range u.UnitsByGPU(t, "share") {
		free += (units - granted) / seven
	}
	if free == 0 {
		t.Fatalf("nothing is left to fill: %v", u.UnitsByGPU(t, "share"))
	}
	rest := harness.Pods(int(free), "rest-", "share", harness.FromTemplate("seven"))
	u.Run(t, rest...)
	u.Create(t, harness.Pod("too-much", "share", harness.FromTemplate("seven")))
	u.WaitUnschedulable(t, "too-much", "cannot allocate all claims")
	u.Delete(t, "too-much")
	for _, node := range nodes {
		if err := u.neverTwice(t, node); err != nil {
			t.Error(err)
		}
	}
	return names(rest)
}

// neverTwice looks at the plugin's records: a whole GPU is one claim's, and shares of one
// are together no more than it has.
func (u *upgrade) neverTwice(t *testing.T, node string) error {
	records, err := u.Records(node)
	if err != nil {
		return err
	}
	memory := map[int]int64{}
	for _, g := range u.GPUs(t, node) {
		memory[int(g.Index)] = max(memory[int(g.Index)], g.MemoryBytes/devices.GiB)
	}
	whole, units := map[int]int{}, map[int]int64{}
	for _, record := range records {
		for _, grant := range record.Grants {
			if grant.Units > 0 {
				units[grant.GPU.Index] += grant.Units
			} else {
				whole[grant.GPU.Index]++
			}
		}
	}
	for index, n := range whole {
		if n > 1 || units[index] > 0 {
			return fmt.Errorf("GPU %d of node %s is granted whole %d times, and %d GiB of it", index, node, n, units[index])
		}
	}
	for index, granted := range units {
		if granted > memory[index] {
			return fmt.Errorf("%d of %d GiB of GPU %d of node %s are granted", granted, memory[index], index, node)
		}
	}
	return nil
}

// releases waits until nodes keep nothing of claims whose pods have gone; one claim is
// used by new pods, too.
func (u *upgrade) releases(t *testing.T, held map[types.UID][]claim.Grant) {
	t.Helper()
	both := harness.Get(t, u.Client.ResourceV1().ResourceClaims(u.Name), "both")
	gone := maps.Clone(held)
	delete(gone, both.UID)
	harness.Eventually(t, "the claims of the pods that have gone to leave the nodes", func(context.Context) error {
		var left []string
		for _, node := range nodes {
			files, err := u.StateClaims(node)
			if err != nil {
				return err
			}
			specs, err := u.CDIClaims(node)
			if err != nil {
				return err
			}
			for _, uid := range slices.Concat(files, specs) {
				if _, old := gone[uid]; old {
					left = append(left, fmt.Sprintf("%s on node %s", uid, node))
				}
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		}
		return nil
	})
}

// nothingLeft returns nil if no node keeps anything of a claim and the templates of
// legacy pods are gone.
func (u *upgrade) nothingLeft(ctx context.Context) error {
	for _, node := range nodes {
		if err := u.CheckNothingOn(node); err != nil {
			return err
		}
	}
	options := metav1.ListOptions{LabelSelector: v1alpha1.LabelLegacy + "=true"}
	templates, err := u.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List(ctx, options)
	if err == nil && len(templates.Items) > 0 {
		err = fmt.Errorf("%d templates of legacy pods are there", len(templates.Items))
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
)

// validateContainers reports which container could not be held to all that it gets by the
// claim and by its other claims. Those are read from the API server; there are mostly
// none.
func (p *Preparer) validateContainers(ctx context.Context, w *preparation) error {
	name, grants := w.claim.Name, w.record.Grants
	var using []container
	var others []string
	for _, pod := range w.pods {
		for _, c := range claim.Containers(pod) {
			parts, err := isolation.Parts(p.options.Isolation, name, c.Used(name, grants))
			if err == nil && len(parts) > 0 {
				err = p.checkTogether(c, name, grants)
			}
			if err != nil {
				return fmt.Errorf("container %q of pod %s: %w", c.Name, pod.Name, err)
			}
			if len(parts) > 0 {
				using = append(using, container{c, pod, parts})
				others = append(others, c.OtherClaims(name)...)
			}
		}
	}
	read := p.readClaims(ctx, w.claim.Namespace, others)
	for _, c := range using {
		for _, other := range c.OtherClaims(name) {
			var parts []isolation.Part
			beside, err := p.grantsBeside(w, read[other], c.pod)
			if err == nil {
				parts, err = isolation.Parts(p.options.Isolation, other, c.Used(other, beside))
			}
			if err != nil {
				return fmt.Errorf("claim %s, which container %q of pod %s uses beside this one: %w", other, c.Name, c.pod.Name, err)
			}
			c.parts = append(c.parts, parts...)
		}
		if err := isolation.CheckContainer(c.parts); err != nil {
			return fmt.Errorf("container %q of pod %s: %w", c.Name, c.pod.Name, err)
		}
	}
	return nil
}

// checkTogether reports a container that has only some of the GPUs of a container group, and would not be held to its
// limits on them: all that use any of the group are told the same.
func (p *Preparer) checkTogether(c claim.PodContainer, claimName string, grants []claim.Grant) error {
	for _, group := range claim.ContainerGroups(grants) {
		all, g := claim.PerGPU(group), group[0]
		used := c.Used(claimName, group)
		own := slices.DeleteFunc(slices.Clone(all), func(g claim.Grant) bool {
			return !slices.ContainsFunc(used, func(u claim.Grant) bool { return u.GPU.UUID == g.GPU.UUID })
		})
		if g.Admin || len(own) == 0 {
			continue
		}
		backend, err := isolation.Find(p.options.Isolation, g.Isolation, g.Mode)
		if err != nil {
			return err
		}
		if some := backend.Counted(own); slices.Equal(some, backend.Counted(all)[:len(some)]) {
			continue
		}
		return fmt.Errorf("it would have %s alone of %s, which claim %s has together for container %q, and isolation %s "+
			"counts all of them: have both containers use the whole claim, or give each a claim of its own",
			gpusOf(own), gpusOf(all), claimName, ptr.Deref(g.Config.Container, ""), g.Isolation)
	}
	return nil
}

// gpusOf names the GPUs of grants, by their indices.
func gpusOf(grants []claim.Grant) string {
	var names []string
	for _, g := range slices.SortedFunc(slices.Values(grants), func(a, b claim.Grant) int {
		return cmp.Compare(a.GPU.Index, b.GPU.Index)
	}) {
		names = append(names, g.GPU.String())
	}
	return strings.Join(names, ", ")
}

// validateNumber reports a share whose limit more containers would have than may: each has
// all of it. Pods that come to use a claim which is prepared are seen by gpu-mps-check.
func (p *Preparer) validateNumber(w *preparation) error {
	if p.options.ContainersPerShare <= 0 {
		return nil
	}
	for _, group := range claim.ContainerGroups(w.record.Grants) {
		if !isolation.Limited(group[0]) {
			continue
		}
		if count := claim.AtOnce(w.claim.Name, group, w.pods); count > p.options.ContainersPerShare {
			return fmt.Errorf("request %q: %d containers share %d GiB, and each could take all of it: a share may have %d "+
				"containers (setting CONTAINERS_PER_SHARE of the plugin): give them claims of their own, as by a "+
				"ResourceClaimTemplate", group[0].Request, count, units(group), p.options.ContainersPerShare)
		}
	}
	return nil
}

func units(grants []claim.Grant) (sum int64) {
	for _, g := range grants {
		sum += g.Units
	}
	return sum
}

// container is a container that uses the claim, and what it gets by its claims.
type container struct {
	claim.PodContainer
	pod   *corev1.Pod
	parts []isolation.Part
}

// grantsBeside are the grants of another claim of the pod, none if it brings no GPUs.
func (p *Preparer) grantsBeside(w *preparation, read readClaim, pod *corev1.Pod) ([]claim.Grant, error) {
	if read.err != nil || !claim.BringsGPUs(read.claim) {
		return nil, read.err
	}
	grants, err := p.grants(w, read.claim)
	if err != nil {
		return nil, err
	}
	_, err = p.use(grants, read.claim, pod)
	return grants, err
}

const (
	// readsAtOnce is how many claims are read side by side: a claim has up to 256 users,
	// with claims of their own, and one after the other they would take longer than the
	// kubelet waits.
	readsAtOnce = 16
	// readsLimit leaves the kubelet, which waits 45 s, the time to be told why.
	readsLimit = 30 * time.Second
)

// readClaim is a claim, or why it cannot be read.
type readClaim struct {
	claim *resourceapi.ResourceClaim
	err   error
}

// readClaims reads the claims of these names, each once.
func (p *Preparer) readClaims(ctx context.Context, namespace string, names []string) map[string]readClaim {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	ctx, cancel := context.WithTimeout(ctx, readsLimit)
	defer cancel()
	read := make([]readClaim, len(names))
	var group errgroup.Group
	group.SetLimit(readsAtOnce)
	for i, name := range names {
		group.Go(func() error {
			read[i].claim, read[i].err = p.options.Cluster.Claim(ctx, namespace, name)
			return nil
		})
	}
	_ = group.Wait()
	byName := make(map[string]readClaim, len(names))
	for i, name := range names {
		byName[name] = read[i]
	}
	return byName
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
)

const (
	// underway is how many pods wait for the scheduler at a time.
	underway = 10
	// patience is how long the scheduler may take for one of them.
	patience = 2 * time.Minute
)

// scheduled is a workload that the stock scheduler of a cluster places, on nodes without kubelets.
type scheduled struct {
	*nodes.Cluster
	// mu guards the fields below while pods are underway.
	mu sync.Mutex
	// is has what was allocated, claims has the claims with GPUs of each node, and slices what each node publishes.
	is     *cluster
	claims [][]*resourceapi.ResourceClaim
	slices [][]*resourceapi.ResourceSlice

	bound, refused int
	// right, wrong and none are nominations of pods with GPUs that have a node: by whether it is that one.
	right, wrong, none int
}

// throughScheduler prints how the scheduler of a cluster, with the controller beside it, places a workload.
func throughScheduler(ctx context.Context, kubeconfig, program string, of []node, w *workload,
	by contender) error {
	c, err := nodes.Connect(kubeconfig)
	if err != nil {
		return err
	}
	s, err := prepare(ctx, c, of, w, by.taint)
	if err != nil {
		return err
	}
	args := []string{"--legacy-policy="}
	if by.option {
		args = append(args, "--best-node")
	}
	stop, err := c.StartController(ctx, program, args...)
	if err != nil {
		return err
	}
	defer stop()
	before, err := c.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := s.inflate(ctx, w, by.gate)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := c.CPU()
	if err != nil {
		return err
	}
	all := s.bound + s.refused
	perPod := func(i int) float64 { return (after[i] - before[i]).Seconds() * 1000 / float64(all) }
	table := report.Table{Head: []string{"scheduler, " + w.name, "allocated (fragments), of 4 and 8 GPUs",
		"bound, refused", "pods a second", "processor time a pod: scheduler, controller",
		"nominations: right, wrong, none"}}
	for i, cell := range []string{r.String(), fmt.Sprintf("%d, %d", s.bound, s.refused),
		fmt.Sprintf("%.0f", float64(all)/took.Seconds()), fmt.Sprintf("%.1f, %.1f ms", perPod(0), perPod(1)),
		fmt.Sprintf("%d, %d, %d", s.right, s.wrong, s.none)} {
		table.Set(by.name, table.Head[1+i], cell)
	}
	return table.Write(os.Stdout)
}

// prepare makes the nodes, what they publish, and what pods need.
func prepare(ctx context.Context, c *nodes.Cluster, of []node, w *workload, tainted bool) (*scheduled, error) {
	s := &scheduled{Cluster: c, is: newCluster(of, firstSeed, tainted, random{}),
		claims: make([][]*resourceapi.ResourceClaim, len(of)), slices: make([][]*resourceapi.ResourceSlice, len(of))}
	templates := map[string]resourceapi.ResourceClaimSpec{}
	for _, k := range w.kinds {
		if k.gpus > 0 {
			templates[k.template()] = k.claim()
		}
	}
	objects := make([]*corev1.Node, len(of))
	for i := range of {
		objects[i] = of[i].object(tainted)
	}
	if err := c.SetUp(ctx, namespace, templates, objects); err != nil {
		return nil, err
	}
	for i := range of {
		var err error
		if s.slices[i], err = nodes.Slices(c.Nodes[i], of[i].machine(), mode.Dynamic); err != nil {
			return nil, err
		}
	}
	_, err := c.Publish(ctx, s.slices)
	return s, err
}

// inflate creates the pods of the first seed, some at a time.
func (s *scheduled) inflate(ctx context.Context, w *workload, gated bool) (result, error) {
	group, own := errgroup.WithContext(ctx)
	group.SetLimit(underway)
	made := 0
	return inflate(s.is, w, firstSeed, func(k *kind) error {
		made++
		ctx, object := own, k.pod(fmt.Sprintf("pod-%d", made), gated)
		group.Go(func() error { return s.follow(ctx, k, object) })
		return context.Cause(own)
	}, func() error {
		err := group.Wait()
		group, own = errgroup.WithContext(ctx)
		group.SetLimit(underway)
		return err
	})
}

// follow makes a pod, waits until it has a node or is refused, and records the outcome.
func (s *scheduled) follow(ctx context.Context, k *kind, object *corev1.Pod) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the scheduler takes too long: see its log"))
	defer cancel()
	pod, err := s.Pods.Create(ctx, object)
	if err != nil {
		return err
	}
	outcome, err := pod.Wait(ctx, pods.Scheduled, pods.Refused)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if outcome == pods.Refused {
		s.refused++
		if err := s.Client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("take pod %s away: %w", pod.Name, err)
		}
		return nil
	}
	s.bound++
	bound := pod.Seen(pods.Scheduled).Pod
	at := placed{node: s.is.at[bound.Spec.NodeName]}
	if k.gpus > 0 {
		nominated := pod.Seen(pods.Nominated).Pod
		switch {
		case nominated == nil:
			s.none++
		case nominated.Status.NominatedNodeName == bound.Spec.NodeName:
			s.right++
		default:
			s.wrong++
		}
		if at.gpus, err = s.allocated(ctx, bound, at.node); err != nil {
			return err
		}
	}
	s.is.take(at, k)
	return nil
}

// allocated returns the GPUs that a pod was allocated on a node, as bits. It publishes the GPUs there in their new
// order, as the node's plugin does.
func (s *scheduled) allocated(ctx context.Context, pod *corev1.Pod, at int) (uint64, error) {
	var bits uint64
	for _, status := range pod.Status.ResourceClaimStatuses {
		claim, err := s.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, ptr.Deref(status.ResourceClaimName, ""),
			metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("read the claim of pod %s: %w", pod.Name, err)
		}
		s.claims[at] = append(s.claims[at], claim)
		for _, d := range ptr.Deref(claim.Status.Allocation, resourceapi.AllocationResult{}).Devices.Results {
			indices, _, err := devices.ParseDeviceName(d.Device)
			if err != nil {
				return 0, fmt.Errorf("find the GPUs of pod %s: %w", pod.Name, err)
			}
			for _, i := range indices {
				bits |= 1 << i
			}
		}
	}
	if bits == 0 {
		return 0, fmt.Errorf("find the GPUs of pod %s: it is bound and has none", pod.Name)
	}
	again := published.After(s.slices[at], s.claims[at], pod.Spec.NodeName)
	for i, slice := range again {
		if slices.EqualFunc(s.slices[at][i].Spec.Devices, slice.Spec.Devices,
			func(a, b resourceapi.Device) bool { return a.Name == b.Name }) {
			continue
		}
		if _, err := s.Client.ResourceV1().ResourceSlices().Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return 0, fmt.Errorf("publish the GPUs of node %s: %w", pod.Spec.NodeName, err)
		}
	}
	s.slices[at] = again
	return bits, nil
}

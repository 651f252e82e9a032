// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// askedAtOnce is how many nodes are asked for their metrics at the same time, namedMost how many
// of those that did not answer are named.
const (
	askedAtOnce = 16
	namedMost   = 3
)

// How long reading what is used may take: so long, and so long for each node.
const (
	usedWithin  = 3 * time.Second
	usedForEach = 50 * time.Millisecond
	// usedFresh is for how long it is taken for what is used now.
	usedFresh = 5 * time.Second
)

// Usage reads what is used beside what is allocated.
type Usage struct {
	Reader
	// Most is on how many nodes at most; on more it is not looked. 0 is any number.
	Most int

	used  map[string]inspect.NodeUse
	notes []string
	at    time.Time
}

// Fill adds what is used of the GPUs of an input.
func (u *Usage) Fill(ctx context.Context, in *inspect.Input) {
	nodes := nodesNamed(in.Slices)
	if u.Most > 0 && len(nodes) > u.Most {
		return
	}
	if u.used == nil || time.Since(u.at) > usedFresh {
		var note string
		u.used, note = u.readUsed(ctx, nodes)
		if u.notes = goneNotes(u.used); note != "" {
			u.notes = append(u.notes, note)
		}
		u.at = time.Now()
	}
	in.Used = u.used
	in.Notes = append(in.Notes, u.notes...)
}

// goneNotes say where pods that are gone still use GPUs.
func goneNotes(used map[string]inspect.NodeUse) []string {
	var notes []string
	for _, node := range slices.Sorted(maps.Keys(used)) {
		var what []string
		for on, bytes := range used[node].Gone {
			what = append(what, fmt.Sprintf("%d MiB of GPU %d by claim %s/%s", bytes>>20, on.GPU, on.Namespace, on.Claim))
		}
		if len(what) > 0 {
			slices.Sort(what)
			notes = append(notes, fmt.Sprintf("Pods that are gone still use GPUs of node %s: %s. `kubectl describe node %s` "+
				"says which, and what ends them.", node, text.List(what, namedMost), node))
		}
	}
	return notes
}

// readUsed reads what is used on nodes, of the metrics of their plugins. What could not be read is
// said in a line.
func (r Reader) readUsed(ctx context.Context, nodes []string) (used map[string]inspect.NodeUse, note string) {
	ctx, cancel := context.WithTimeout(ctx, usedWithin+time.Duration(len(nodes))*usedForEach)
	defer cancel()
	used = map[string]inspect.NodeUse{}
	plugins, err := r.plugins(ctx, r.Node)
	switch {
	case apierrors.IsForbidden(err):
		return used, "You may not list the pods of all namespaces: what is used is not known."
	case err != nil:
		return used, fmt.Sprintf("What is used is not known: %v.", err)
	}
	byNode := map[string][]corev1.Pod{}
	for _, pod := range plugins {
		byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
	}
	var mu sync.Mutex
	failed := map[string]error{}
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for _, node := range nodes {
		group.Go(func() error {
			use, err := r.usedOn(ctx, node, byNode[node])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[node] = err
			} else {
				used[node] = use
			}
			return nil
		})
	}
	_ = group.Wait() // what fails is in failed
	return used, notUsed(nodes, failed)
}

// usedOn is what is used on one node.
func (r Reader) usedOn(ctx context.Context, node string, plugins []corev1.Pod) (inspect.NodeUse, error) {
	metrics, err := r.metrics(ctx, node, plugins)
	if err != nil {
		return inspect.NodeUse{}, err
	}
	use := inspect.NodeUse{GPUs: map[int]int64{}, Claims: map[inspect.ClaimOn]int64{}}
	eachGPU(metrics[metricUsedGPU], func(gpu int, _ map[string]string, value float64) { use.GPUs[gpu] += int64(value) })
	eachGPU(metrics[metricUsed], func(gpu int, labels map[string]string, value float64) {
		on := inspect.ClaimOn{Namespace: labels["namespace"], Claim: labels["claim"], GPU: gpu}
		use.Claims[on] += int64(value)
		if labels["pod"] == "" && gonePods(metrics) {
			if use.Gone == nil {
				use.Gone = map[inspect.ClaimOn]int64{}
			}
			use.Gone[on] += int64(value)
		}
	})
	eachGPU(metrics[metricPeak], func(gpu int, labels map[string]string, value float64) {
		if use.Peaks == nil {
			use.Peaks = map[inspect.ClaimOn]int64{}
		}
		use.Peaks[inspect.ClaimOn{Namespace: labels["namespace"], Claim: labels["claim"], GPU: gpu}] += int64(value)
	})
	return use, nil
}

// gonePods reports whether the audit found some that had the time to end.
func gonePods(metrics map[string]*dto.MetricFamily) bool {
	return slices.ContainsFunc(metrics[metricAudit].GetMetric(), func(m *dto.Metric) bool {
		return labelsOf(m)["kind"] == kindGone && m.GetGauge().GetValue() > 0
	})
}

// notUsed says of which nodes it is not known what is used, and why of the first.
func notUsed(nodes []string, failed map[string]error) string {
	var names []string
	for _, node := range nodes {
		if failed[node] != nil {
			names = append(names, node)
		}
	}
	if len(names) == 0 {
		return ""
	}
	first := failed[names[0]]
	on := "on node " + names[0]
	if len(names) > 1 {
		on = "on nodes " + text.List(names, namedMost)
	}
	if apierrors.IsForbidden(first) && !slices.ContainsFunc(names, func(name string) bool {
		return !apierrors.IsForbidden(failed[name])
	}) {
		return "You may not read the metrics of the nodes' plugins (get on pods/proxy): what is used " + on +
			" is not known."
	}
	return fmt.Sprintf("What is used %s is not known: %v.", on, first)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller"
)

var (
	podsResource   = corev1.SchemeGroupVersion.WithResource("pods")
	claimsResource = resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	slicesResource = resourceapi.SchemeGroupVersion.WithResource("resourceslices")
)

// watched is for how long a step is measured that nobody waits for the end of.
const watched = 10 * time.Second

// burst is how many changes are made at once.
const burst = 20

type bench struct {
	nodes, pods int
	most        time.Duration
	site        *site
}

func newBench(nodes, pods int, most time.Duration) (*bench, error) {
	s, err := newSite(nodes, pods)
	return &bench{nodes: nodes, pods: pods, most: most, site: s}, err
}

// used is the processor time of the process until now. The steps' own part of it is
// small beside the controller's, and the same for each version of it.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// step is something that happens to the cluster.
type step struct {
	name string
	// do does it, and returns what to wait for; nil to watch for a while.
	do func(ctx context.Context) (wait func(ctx context.Context) bool, err error)
}

func (b *bench) run(ctx context.Context) ([]string, error) {
	ctx = klog.NewContext(ctx, klog.Logger{})
	ctx, cancel := context.WithCancel(ctx)
	returned := make(chan error, 1)
	var lines []string
	steps := []step{
		{fmt.Sprintf("a replica begins to lead, %d pods have their annotations; lag: a new pod gets its template", b.pods),
			func(ctx context.Context) (func(context.Context) bool, error) {
				go func() {
					returned <- controller.Run(ctx, controller.Options{
						Client: b.site.client, Metadata: b.site.metadata, DeviceClasses: true, ClassGrace: time.Hour,
						TemplateGrace: time.Hour, PodAnnotations: true, PodSyncs: true,
					})
				}()
				return b.converted("quiet-start", "gpushare.mem.main.2")
			}},
		{"the same, 10 s on", nil},
		{fmt.Sprintf("status of %d legacy pods of two templates changes", b.pods),
			func(context.Context) (func(context.Context) bool, error) {
				return nil, b.each(b.pods, func(i int) error {
					p := legacyPod(i)
					p.ResourceVersion, p.Status.Message = "2", "changed"
					return b.site.tracker.Update(podsResource, p, p.Namespace)
				})
			}},
		{fmt.Sprintf("%d pods take longer than 5 s to start, on as many nodes", b.nodes),
			func(context.Context) (func(context.Context) bool, error) {
				return nil, b.each(b.nodes, func(i int) error {
					name := fmt.Sprintf("starting-%05d", i)
					if err := b.site.tracker.Create(claimsResource, claim("burst", name, node(i), i%8), "burst"); err != nil {
						return err
					}
					return b.site.tracker.Create(podsResource, pod("burst", name, node(i), "t"), "burst")
				})
			}},
		{"500 pods of one namespace wait for GPUs; lag: the Event of a pod of another",
			func(ctx context.Context) (func(context.Context) bool, error) {
				if err := b.each(500, func(i int) error { return b.waits("loud", fmt.Sprintf("waits-%d", i), nil) }); err != nil {
					return nil, err
				}
				return b.isTold("quiet", "quiet-waits", nil)
			}},
		{"100 nodes publish their GPUs in another order while they wait",
			func(context.Context) (func(context.Context) bool, error) {
				return nil, b.each(min(100, b.nodes), func(i int) error {
					return b.site.tracker.Update(slicesResource, slice(i,
						true), "")
				})
			}},
		{"1000 pods of one namespace with 1000 requests; lag: another namespace's template",
			func(ctx context.Context) (func(context.Context) bool, error) {
				if err := b.each(1000,
					func(i int) error {
						_,
							err := b.converted("loud", fmt.Sprintf("gpushare.mem.main%d.3", i))
						return err
					}); err != nil {
					return nil, err
				}
				return b.converted("quiet-many", "gpushare.mem.main.5")
			}},
		{"a claim of 32 requests with 31 nested selectors each; lag: another namespace's Event",
			func(ctx context.Context) (func(context.Context) bool, error) {
				if err := b.waits("loud", "expensive", expensive()); err != nil {
					return nil, err
				}
				time.Sleep(time.Second)
				return b.isTold("quiet", "quiet-late", nil)
			}},
	}
	for _, s := range steps {
		before, start := used(), time.Now()
		lag := "–"
		var wait func(context.Context) bool
		if s.do != nil {
			var err error
			if wait, err = s.do(ctx); err != nil {
				cancel()
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
		if wait != nil {
			patient, stop := context.WithTimeout(ctx, b.most)
			if wait(patient) {
				lag = fmt.Sprintf("%.1f s", time.Since(start).Seconds())
			} else {
				lag = fmt.Sprintf("> %.0f s", b.most.Seconds())
			}
			stop()
		} else {
			time.Sleep(watched)
		}
		line := fmt.Sprintf("| %s | %.1f s | %s | %s |", s.name, (used() - before).Seconds(), b.site.taken(), lag)
		fmt.Println("controller:", line)
		lines = append(lines, line)
	}
	cancel()
	select {
	case err := <-returned:
		return lines, err
	case <-time.After(b.most):
		// It is in the midst of an explanation that nothing ends.
		return lines, nil
	}
}

func (b *bench) each(n int, f func(i int) error) error {
	for i := range n {
		if err := f(i); err != nil {
			return err
		}
		// A watch of the fake client holds a hundred changes.
		if i%burst == burst-1 {
			time.Sleep(burst * time.Millisecond)
		}
	}
	return nil
}

// converted makes a pod that needs a template, and waits for it.
func (b *bench) converted(namespace, ofTemplate string) (func(context.Context) bool, error) {
	p := pod(namespace, "p-"+ofTemplate, "", ofTemplate)
	p.Labels, p.Status.ResourceClaimStatuses = map[string]string{v1alpha1.LabelLegacy: "true"}, nil
	if err := b.site.tracker.Create(podsResource, p, namespace); err != nil {
		return nil, err
	}
	templates := resourceapi.SchemeGroupVersion.WithResource("resourceclaimtemplates")
	return func(ctx context.Context) bool {
		for ctx.Err() == nil {
			if _, err := b.site.tracker.Get(templates, namespace, ofTemplate); err == nil {
				return true
			}
			time.Sleep(20 * time.Millisecond)
		}
		return false
	}, nil
}

// waits makes a pod that the scheduler has refused, and its claim.
func (b *bench) waits(namespace, name string, requests []resourceapi.DeviceRequest) error {
	if requests == nil {
		requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "mps.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}}
	}
	c := claim(namespace, name, "", 0)
	c.Status = resourceapi.ResourceClaimStatus{}
	c.Spec.Devices.Requests = requests
	if err := b.site.tracker.Create(claimsResource, c, namespace); err != nil {
		return err
	}
	p := pod(namespace, name, "", "t")
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message: "0/1000 nodes are available: 1000 cannot allocate all claims.", LastTransitionTime: metav1.Now(),
	}}
	var object runtime.Object = p
	return b.site.tracker.Create(podsResource, object, namespace)
}

// isTold is waits, and waits for the pod's Event.
func (b *bench) isTold(namespace, name string, requests []resourceapi.DeviceRequest) (func(context.Context) bool,
	error) {
	told := make(chan struct{})
	b.site.mu.Lock()
	b.site.told[name] = told
	b.site.mu.Unlock()
	if err := b.waits(namespace, name, requests); err != nil {
		return nil, err
	}
	return func(ctx context.Context) bool {
		select {
		case <-told:
			return true
		case <-ctx.Done():
			return false
		}
	}, nil
}

// expensive are as many requests as a claim can have, with selectors each of which costs
// nearly as much as the scheduler allows.
func expensive() []resourceapi.DeviceRequest {
	var out []resourceapi.DeviceRequest
	for r := range 32 {
		e := &resourceapi.ExactDeviceRequest{DeviceClassName: "share.gpu.aliyun.com",
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
		for s := range 31 {
			e.Selectors = append(e.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf("lists.range(80).all(i, lists.range(80).all(j, lists.range(10).all(k, i + j + k + %d >= "+
					"0)))", 31*r+s),
			}})
		}
		out = append(out, resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", r), Exactly: e})
	}
	return out
}

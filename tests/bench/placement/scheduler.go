// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
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
	publisher *nodes.Publisher
	// is has what was allocated, at the nodes of it by name.
	is     *cluster
	at     map[string]int
	slices [][]*resourceapi.ResourceSlice
	// seen has pods as they change.
	seen chan *corev1.Pod
	// waiting are the pods that have neither a node nor been refused.
	waiting map[string]*arrival
	// gated has pods with GPUs wait at the gate, as the policy of the option best-node-gate does.
	gated bool
	figures
}

// arrival is a pod that waits, with the node that the controller nominated first.
type arrival struct {
	kind      *kind
	nominated string
}

// figures are those that only a scheduler has.
type figures struct {
	bound, refused int
	large, placed  int
	// right, wrong and none are nominations of pods with GPUs that have a node: by whether it is that one.
	right, wrong, none int
	// perSecond is how many pods were bound or refused, scheduler and controller their processor time a pod.
	perSecond             float64
	scheduler, controller time.Duration
}

// schedule has the pods of a seed placed until so much is asked for. controller is the one that runs beside.
func schedule(ctx context.Context, c *nodes.Cluster, controller *nodes.Component, of []node, w *workload, seed uint64,
	by contender) (result, figures, error) {
	s := &scheduled{Cluster: c, publisher: nodes.NewPublisher(), at: map[string]int{}, waiting: map[string]*arrival{},
		is: newCluster(of, seed, by.taint, random{}), seen: make(chan *corev1.Pod, 1000), gated: by.gate}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := s.prepare(ctx, of, w, by.taint); err != nil {
		return result{}, figures{}, err
	}
	cpu := func() (of [2]time.Duration, err error) {
		if of[0], err = c.Scheduler.CPU(ctx); err == nil {
			of[1], err = controller.CPU(ctx)
		}
		return of, err
	}
	before, err := cpu()
	if err != nil {
		return result{}, figures{}, err
	}
	began := time.Now()
	r, err := s.arrive(ctx, w, seed)
	if err != nil {
		return result{}, figures{}, err
	}
	after, err := cpu()
	all := s.bound + s.refused
	s.perSecond = float64(all) / time.Since(began).Seconds()
	s.scheduler, s.controller = (after[0]-before[0])/time.Duration(all), (after[1]-before[1])/time.Duration(all)
	return r, s.figures, err
}

// prepare makes the nodes, what they publish, and what pods need.
func (s *scheduled) prepare(ctx context.Context, of []node, w *workload, tainted bool) error {
	if _, err := s.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace %s: %w", namespace, err)
	}
	classes, err := deviceclasses.All()
	if err != nil {
		return err
	}
	for _, class := range classes {
		if _, err := s.Client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make DeviceClass %s: %w", class.Name, err)
		}
	}
	for _, k := range w.kinds {
		if k.gpus == 0 {
			continue
		}
		_, err := s.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, k.claims(), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make ResourceClaimTemplate %s: %w", k.template(), err)
		}
	}
	objects := make([]*corev1.Node, len(of))
	for i := range of {
		s.at[of[i].name] = i
		objects[i] = of[i].object(tainted)
	}
	if err := s.Register(ctx, objects); err != nil {
		return err
	}
	go s.KeepUp(ctx)
	for i := range of {
		published, err := s.publisher.Slices(s.Nodes[i], of[i].machine(), mode.Dynamic, nil)
		if err != nil {
			return err
		}
		s.slices = append(s.slices, published)
	}
	if _, err := s.Publish(ctx, s.slices); err != nil {
		return err
	}
	return s.watch(ctx)
}

func (s *scheduled) watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(s.Client, 0, informers.WithNamespace(namespace))
	pods := factory.Core().V1().Pods().Informer()
	see := func(obj any) {
		if pod, is := obj.(*corev1.Pod); is {
			select {
			case s.seen <- pod:
			case <-ctx.Done():
			}
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see,
		UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
		return fmt.Errorf("watch the pods of namespace %s: %w", namespace, err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return fmt.Errorf("watch the pods of namespace %s: %w", namespace, context.Cause(ctx))
	}
	return nil
}

// arrive has the pods of a seed come.
func (s *scheduled) arrive(ctx context.Context, w *workload, seed uint64) (result, error) {
	withGPUs := w.typicalOf(100, func(k *kind) bool { return k.gpus > 0 })
	var r result
	var sum int64
	measured := false
	for i, k := range w.arrivals(rand.New(rand.NewPCG(seed, 0)), asked, s.is.gpus) {
		name := fmt.Sprintf("pod-%d", i)
		s.waiting[name] = &arrival{kind: k}
		pod := k.pod(name)
		if s.gated && k.gpus > 0 {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateBestNode}}
		}
		if _, err := s.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return r, fmt.Errorf("make pod %s: %w", name, err)
		}
		if k.gpus >= 4 {
			s.large++
		}
		sum += k.asked
		most := underway - 1
		if !measured && sum*100 >= fragmentedAt*s.is.gpus {
			most = 0
		}
		if err := s.settle(ctx, most); err != nil {
			return r, err
		}
		if most == 0 {
			measured, r.fragments = true, s.is.fragments(withGPUs)
		}
	}
	if err := s.settle(ctx, 0); err != nil {
		return r, err
	}
	r.allocated = s.is.allocated()
	if s.large > 0 {
		r.large = 100 * float64(s.placed) / float64(s.large)
	}
	return r, nil
}

// settle returns when so few pods wait.
func (s *scheduled) settle(ctx context.Context, most int) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for len(s.waiting) > most {
		select {
		case pod := <-s.seen:
			if err := s.see(ctx, pod); err != nil {
				return err
			}
		case <-timeout.C:
			return fmt.Errorf("wait for the scheduler, %d pods of %v do without a node: see its log", len(s.waiting), patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// see takes note of what became of a pod.
func (s *scheduled) see(ctx context.Context, pod *corev1.Pod) error {
	a := s.waiting[pod.Name]
	if a == nil {
		return nil
	}
	if a.nominated == "" && byController(pod) {
		a.nominated = pod.Status.NominatedNodeName
	}
	refused := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable &&
			strings.Contains(c.Message, "nodes are available")
	})
	switch {
	case pod.Spec.NodeName != "":
		delete(s.waiting, pod.Name)
		return s.allocated(ctx, pod, a)
	case refused:
		delete(s.waiting, pod.Name)
		s.refused++
		err := s.Client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
		if err != nil {
			return fmt.Errorf("take pod %s away: %w", pod.Name, err)
		}
	}
	return nil
}

// byController reports whether a pod's nomination is the controller's: the scheduler writes one, too, while it binds.
func byController(pod *corev1.Pod) bool {
	return pod.Status.NominatedNodeName != "" &&
		slices.ContainsFunc(pod.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == v1alpha1.ControllerName && strings.Contains(f.FieldsV1.GetRawString(), "nominatedNodeName")
		})
}

// allocated counts what a pod has that has a node, and publishes the GPUs there in their new order, as the node's
// plugin does.
func (s *scheduled) allocated(ctx context.Context, pod *corev1.Pod, a *arrival) error {
	s.bound++
	p := placed{node: s.at[pod.Spec.NodeName]}
	if a.kind.gpus > 0 {
		switch a.nominated {
		case pod.Spec.NodeName:
			s.right++
		case "":
			s.none++
		default:
			s.wrong++
		}
		if a.kind.gpus >= 4 {
			s.placed++
		}
		var err error
		if p.gpus, err = s.gpus(ctx, pod); err != nil {
			return err
		}
	}
	s.is.take(p, a.kind, 1)
	if a.kind.gpus == 0 {
		return nil
	}
	return s.reorder(ctx, p.node)
}

// gpus are those that a pod was allocated, as bits.
func (s *scheduled) gpus(ctx context.Context, pod *corev1.Pod) (uint64, error) {
	var bits uint64
	for _, status := range pod.Status.ResourceClaimStatuses {
		claim, err := s.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, ptr.Deref(status.ResourceClaimName, ""),
			metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("read the claim of pod %s: %w", pod.Name, err)
		}
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
	return bits, nil
}

// reorder publishes a node's GPUs with the fullest first.
func (s *scheduled) reorder(ctx context.Context, at int) error {
	n := &s.is.nodes[at]
	var gpus []placement.GPU
	for i, rest := range n.rests {
		gpus = append(gpus, placement.GPU{Index: i, Memory: milli, Used: milli - rest, Full: rest == 0})
	}
	again, err := s.publisher.Slices(s.Nodes[at], n.machine(), mode.Dynamic, placement.Packed(gpus))
	if err != nil {
		return err
	}
	for i, slice := range again {
		was := s.slices[at][i]
		if slices.EqualFunc(was.Spec.Devices, slice.Spec.Devices,
			func(a, b resourceapi.Device) bool { return a.Name == b.Name }) {
			continue
		}
		if _, err := s.Client.ResourceV1().ResourceSlices().Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("publish the GPUs of node %s: %w", n.name, err)
		}
		s.slices[at][i] = slice
	}
	return nil
}

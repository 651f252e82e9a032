// SPDX-License-Identifier: Apache-2.0

// Command spread measures how evenly shares come to lie on a node's GPUs, by
// placement and by how fast pods come. tests/bench/spread.sh makes the cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	namespace = "default"
	node      = "n1"
	newGPUs   = 8
	podCount  = 32
	units     = 4
	patience  = 3 * time.Minute
	plain     = "plain"
)

// way is a way of getting shares onto GPUs.
type way struct {
	name      string
	placement mode.Placement
	rotated   bool
}

// pace is how pods come.
type pace struct {
	name     string
	interval time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "spread:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("configure the API client from KUBECONFIG: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	b := &bench{client: client}
	if err := b.makeTemplates(ctx); err != nil {
		return err
	}
	fmt.Printf("%d pods of %d GiB on %d GPUs; %d GiB on each would be even.\n\n", podCount, units, newGPUs,
		podCount*units/newGPUs)
	fmt.Println("| placement | pods come | GiB on each GPU | most − least | writes | all run after |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, p := range []pace{{"at once", 0}, {"1 per second", time.Second}} {
		for _, w := range []way{
			{"binpack", mode.Binpack, false},
			{"spread", mode.Spread, false},
			{"binpack, rotated alternatives", mode.Binpack, true},
			{"spread, rotated alternatives", mode.Spread, true},
		} {
			got, err := b.measure(ctx, w, p)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.name, p.name, err)
			}
			fmt.Printf("| %s | %s | %s | %d | %d | %.1f s |\n", w.name, p.name, strings.Trim(fmt.Sprint(got.units), "[]"),
				slices.Max(got.units)-slices.Min(got.units), got.writes, got.took.Seconds())
		}
	}
	return nil
}

type bench struct{ client kubernetes.Interface }

// makeTemplates makes one template without a preference and, for each GPU, one
// that prefers it and takes the next ones otherwise.
func (b *bench) makeTemplates(ctx context.Context) error {
	requests := map[string]resourceapi.DeviceRequest{
		plain: {Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "share.gpu.aliyun.com",
			Capacity: capacity()}},
	}
	for first := range newGPUs {
		request := resourceapi.DeviceRequest{Name: "gpu"}
		for i := range newGPUs {
			g := (first + i) % newGPUs
			request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: fmt.Sprintf("card-%d", g), DeviceClassName: "share.gpu.aliyun.com", Capacity: capacity(),
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: fmt.Sprintf(`device.attributes["gpu.aliyun.com"].index == %d`, g),
				}}},
			})
		}
		requests[rotated(first)] = request
	}
	for name, request := range requests {
		_, err := b.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceClaimTemplateSpec{
				Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
					request}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func rotated(first int) string { return fmt.Sprintf("rotated-%d", first) }

func capacity() *resourceapi.CapacityRequirements {
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		v1alpha1.CapMemory: *resource.NewQuantity(units*devices.GiB, resource.BinarySI),
	}}
}

// measured is what came of all pods: the units on each GPU, how often the node wrote its
// slice, and how long it took until all ran.
type measured struct {
	units  []int64
	writes int64
	took   time.Duration
}

func (b *bench) measure(ctx context.Context, w way, p pace) (*measured, error) {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, ack.NodeLabelPlacement, w.placement)
	if _, err := b.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		return nil, err
	}
	var before int64
	inOrder := func(ctx context.Context) (bool, error) {
		var ready bool
		var err error
		before, ready, err = b.inOrder(ctx, w.placement)
		return ready, err
	}
	if err := b.until(ctx, "the first GPU to come first", inOrder); err != nil {
		return nil, err
	}
	began := time.Now()
	for i := range podCount {
		template := plain
		if w.rotated {
			template = rotated(i % newGPUs)
		}
		if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod(i, template), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		if err := pause(ctx, p.interval); err != nil {
			return nil, err
		}
	}
	if err := b.until(ctx, "all pods to run", b.allRun); err != nil {
		return nil, err
	}
	got := &measured{took: time.Since(began)}
	var err error
	if got.units, err = b.granted(ctx); err != nil {
		return nil, err
	}
	after, _, err := b.inOrder(ctx, w.placement)
	if err != nil {
		return nil, err
	}
	got.writes = after - before
	if err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return nil, err
	}
	return got, b.until(ctx, "all claims to be gone", b.noClaims)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (b *bench) until(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, condition); err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}

// inOrder says how often the node's slice was written, and whether it offers all of its
// GPUs by the placement.
func (b *bench) inOrder(ctx context.Context, placement mode.Placement) (writes int64, ready bool, err error) {
	list, err := b.client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node + ",spec.driver=" + v1alpha1.DriverName})
	if err != nil || len(list.Items) != 1 {
		return 0, false, err
	}
	slice := list.Items[0]
	for i, d := range slice.Spec.Devices {
		_, spread := d.Attributes[v1alpha1.AttrMaxShares]
		slots := d.Capacity[v1alpha1.CapSlots]
		if d.Name != devices.DeviceName(i, mode.Share) || spread != (placement == mode.Spread) ||
			spread && slots.Value.Value() != 1 {
			return slice.Generation, false, nil
		}
	}
	return slice.Generation, len(slice.Spec.Devices) == newGPUs, nil
}

func (b *bench) allRun(ctx context.Context) (bool, error) {
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
	if err != nil {
		return false, err
	}
	return len(list.Items) == podCount, nil
}

func (b *bench) noClaims(ctx context.Context) (bool, error) {
	list, err := b.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return len(list.Items) == 0, nil
}

func (b *bench) granted(ctx context.Context) ([]int64, error) {
	list, err := b.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	got := make([]int64, newGPUs)
	for _, c := range list.Items {
		for _, r := range c.Status.Allocation.Devices.Results {
			indices, _, err := devices.ParseDeviceName(r.Device)
			if err != nil {
				return nil, err
			}
			memory := r.ConsumedCapacity[v1alpha1.CapMemory]
			got[indices[0]] += memory.Value() / devices.GiB
		}
	}
	return got, nil
}

func pod(i int, template string) *corev1.Pod {
	grace, token := int64(0), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("spread-%d", i)},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "card", ResourceClaimTemplateName: &template}},
			Containers: []corev1.Container{{
				Name: "main", Image: "localhost/gpu-probe:latest", ImagePullPolicy: corev1.PullIfNotPresent,
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "card"}}},
			}},
		},
	}
}

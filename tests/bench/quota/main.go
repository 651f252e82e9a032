// SPDX-License-Identifier: Apache-2.0

// Command quota measures what it costs that a ResourceQuota counts the GiB of shares: 500
// pods as on ACK, from the first one's creation to the last one's node, in turns in a
// namespace without a quota, in one with a quota that counts shares, which Kubernetes does by
// itself, and in one with a quota of GiB. tests/bench/quota.sh makes the cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/machine"
)

const (
	pods     = 500
	rounds   = 3
	writers  = 16
	nodes    = 20
	newGPUs  = 8
	patience = 5 * time.Minute
	label    = "bench-quota"
)

// The namespaces, and the class that the quota of each is about.
const (
	none   = "no-quota"
	shares = "quota-of-shares"
	ofGiB  = "quota-of-gib"
)

var (
	kinds   = []string{none, shares, ofGiB}
	classes = map[string]string{shares: "memory.gpu.aliyun.com", ofGiB: quota.ClassGiB}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quota:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	described := machine.Describe()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("configure the API client from KUBECONFIG: %w", err)
	}
	config.QPS = -1
	b := &bench{}
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	for i := range nodes {
		if err := b.node(ctx, fmt.Sprintf("many-%d", i)); err != nil {
			return fmt.Errorf("make a node without a kubelet: %w", err)
		}
	}
	for _, namespace := range kinds {
		if err := b.namespace(ctx, namespace, classes[namespace]); err != nil {
			return fmt.Errorf("make namespace %s: %w", namespace, err)
		}
	}
	took := map[string][]time.Duration{}
	// The first round makes the templates and is not counted.
	for round := range rounds + 1 {
		crowd := pods
		if round == 0 {
			crowd = writers
		}
		for _, namespace := range kinds {
			d, err := b.burst(ctx, namespace, crowd)
			if err != nil {
				return fmt.Errorf("round %d in namespace %s: %w", round, namespace, err)
			}
			fmt.Fprintf(os.Stderr, "round %d, %s: %.1f s\n", round, namespace, d.Seconds())
			if round > 0 {
				took[namespace] = append(took[namespace], d)
			}
		}
	}
	fmt.Printf("%s; %d pods, %d rounds, %d nodes of %d GPUs\n\n", described, pods, rounds, nodes, newGPUs)
	claims, err := b.claims(ctx)
	if err != nil {
		return err
	}
	fmt.Println("| Quota | median | least | most | create a claim (dry run), p50 |\n|---|---|---|---|---|")
	for _, namespace := range kinds {
		all := slices.Sorted(slices.Values(took[namespace]))
		fmt.Printf("| %s | %.1f s | %.1f s | %.1f s | %.1f ms |\n", namespace, all[len(all)/2].Seconds(), all[0].Seconds(),
			all[len(all)-1].Seconds(), float64(claims[namespace].Microseconds())/1000)
	}
	return nil
}

type bench struct{ client kubernetes.Interface }

// node makes a Node that has no kubelet, and what it publishes.
func (b *bench) node(ctx context.Context, name string) error {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1k"),
		corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods:   resource.MustParse("1k")}
	_, err := b.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, label: "true"}},
		Status: corev1.NodeStatus{Capacity: list, Allocatable: list, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	m := &gpu.Machine{}
	for i := range newGPUs {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%s-%d", name, i), Model: "NVIDIA A100-SXM4-80GB",
			MemoryMiB: 81920})
	}
	pool := v1alpha1.PoolName(name)
	built := devices.Build(m, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20, Isolation: "none"}).Pools[pool]
	for i, slice := range built.Slices {
		_, err := b.client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
			Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: &name, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(built.Slices))}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) namespace(ctx context.Context, name, class string) error {
	_, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil || class == "" {
		return err
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	q.Spec.Hard = corev1.ResourceList{
		corev1.ResourceName(class + ".deviceclass.resource.k8s.io/devices"): *resource.NewQuantity(10*pods,
			resource.DecimalSI)}
	if _, err := b.client.CoreV1().ResourceQuotas(name).Create(ctx, q, metav1.CreateOptions{}); err != nil {
		return err
	}
	return b.until(ctx, "the quota to count", func(ctx context.Context) (bool, error) {
		now, err := b.client.CoreV1().ResourceQuotas(name).Get(ctx, q.Name, metav1.GetOptions{})
		return err == nil && len(now.Status.Used) > 0, err
	})
}

func (b *bench) until(ctx context.Context, what string, is wait.ConditionWithContextFunc) error {
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, is); err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}

// burst is how long it takes until all pods have a node. Afterwards nothing is left of them.
func (b *bench) burst(ctx context.Context, namespace string, crowd int) (time.Duration, error) {
	began := time.Now()
	made := make(chan error, writers)
	for w := range writers {
		go func() {
			for i := w; i < crowd; i += writers {
				if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod(i), metav1.CreateOptions{}); err != nil {
					made <- err
					return
				}
			}
			made <- nil
		}()
	}
	for range writers {
		if err := <-made; err != nil {
			return 0, fmt.Errorf("create a pod: %w", err)
		}
	}
	bound := metav1.ListOptions{FieldSelector: "spec.nodeName=", Limit: 1}
	if err := b.until(ctx, "all pods to have a node", func(ctx context.Context) (bool, error) {
		left, err := b.client.CoreV1().Pods(namespace).List(ctx, bound)
		return err == nil && len(left.Items) == 0, err
	}); err != nil {
		return 0, err
	}
	took := time.Since(began)
	claims, err := b.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range claims.Items {
		if is := len(claims.Items[i].Spec.Devices.Requests[0].FirstAvailable) > 0; is != (namespace == ofGiB) {
			return 0, fmt.Errorf("claim %s is counted: %t", claims.Items[i].Name, is)
		}
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
		return 0, fmt.Errorf("delete the pods: %w", err)
	}
	return took, b.until(ctx, "all claims to be gone", func(ctx context.Context) (bool, error) {
		left, err := b.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0, err
	})
}

// claims is how long it takes to create a claim, which is not stored, by namespace.
func (b *bench) claims(ctx context.Context) (map[string]time.Duration, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "main", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: classes[shares], Capacity: &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse("3Gi")}},
	}}}
	took, dry := map[string][]time.Duration{}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for range pods {
		for _, namespace := range kinds {
			began := time.Now()
			if _, err := b.client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, dry); err != nil {
				return nil, fmt.Errorf("create a claim in namespace %s: %w", namespace, err)
			}
			took[namespace] = append(took[namespace], time.Since(began))
		}
	}
	p50 := map[string]time.Duration{}
	for namespace, all := range took {
		slices.Sort(all)
		p50[namespace] = all[len(all)/2]
	}
	return p50, nil
}

// pod asks for 1 to 3 GiB. It goes to a node that the node controller takes for lost.
func pod(i int) *corev1.Pod {
	gib := *resource.NewQuantity(int64(1+i%3), resource.DecimalSI)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{label: "true"},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{ack.ResourceMemory: gib}}}},
		},
	}
}

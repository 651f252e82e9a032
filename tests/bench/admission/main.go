// SPDX-License-Identifier: Apache-2.0

// Command admission measures what the driver's policies add to the creation of a pod: the same
// dry-run creates with the policies bound and not, in turns; and how soon gpu-compat-controller
// makes a pod's template. It removes the policies' bindings for that time and puts them back; so
// it is for a cluster of its own, which KUBECONFIG names. tests/bench/admission.sh makes one, with
// the policies of all options.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedadmissionv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	namespace = "default"
	turns     = 8 // of each kind
	perTurn   = 200
	patience  = time.Minute
	prefix    = "gpushare-"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "admission:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(),
		nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: set KUBECONFIG: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the API client: %w", err)
	}
	b, err := findBindings(ctx, client.AdmissionregistrationV1())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.bind(context.WithoutCancel(ctx))) }()
	if err := measure(ctx, client, b); err != nil {
		return err
	}
	if err := b.bind(ctx); err != nil {
		return err
	}
	if err := takesEffect(ctx, client, pod(1, corev1.ResourceList{ack.ResourceMemory: resource.MustParse("1")}),
		true); err != nil {
		return err
	}
	return measureTemplates(ctx, client)
}

// bindings are those of the driver's policies.
type bindings struct {
	client     typedadmissionv1.AdmissionregistrationV1Interface
	mutating   []admissionv1.MutatingAdmissionPolicyBinding
	validating []admissionv1.ValidatingAdmissionPolicyBinding
	bound      bool
}

func findBindings(ctx context.Context, client typedadmissionv1.AdmissionregistrationV1Interface) (*bindings, error) {
	b := &bindings{client: client, bound: true}
	mutating, err := client.MutatingAdmissionPolicyBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the MutatingAdmissionPolicyBindings: %w", err)
	}
	validating, err := client.ValidatingAdmissionPolicyBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the ValidatingAdmissionPolicyBindings: %w", err)
	}
	for _, binding := range mutating.Items {
		if strings.HasPrefix(binding.Name, prefix) {
			b.mutating = append(b.mutating, binding)
		}
	}
	for _, binding := range validating.Items {
		if strings.HasPrefix(binding.Name, prefix) {
			b.validating = append(b.validating, binding)
		}
	}
	if len(b.mutating) == 0 || len(b.validating) == 0 {
		return nil, fmt.Errorf("the cluster has no bindings %s*: install deployments/manifests", prefix)
	}
	return b, nil
}

func (b *bindings) unbind(ctx context.Context) error {
	b.bound = false
	for _, binding := range b.mutating {
		if err := b.client.MutatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("remove binding %s: %w", binding.Name, err)
		}
	}
	for _, binding := range b.validating {
		if err := b.client.ValidatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("remove binding %s: %w", binding.Name, err)
		}
	}
	return nil
}

func (b *bindings) bind(ctx context.Context) error {
	if b.bound {
		return nil
	}
	b.bound = true
	for _, binding := range b.mutating {
		binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
		if _, err := b.client.MutatingAdmissionPolicyBindings().Create(ctx, &binding, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("put binding %s back: %w", binding.Name, err)
		}
	}
	for _, binding := range b.validating {
		binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
		if _, err := b.client.ValidatingAdmissionPolicyBindings().Create(ctx, &binding, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("put binding %s back: %w", binding.Name, err)
		}
	}
	return nil
}

// kind is a kind of pods, and how long their creation took.
type kind struct {
	name    string
	pod     *corev1.Pod
	on, off stats.Sample
}

// pod has so many containers with these limits each.
func pod(containers int, limits corev1.ResourceList) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bench"}}
	for i := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("c%d", i), Image: "none", Resources: corev1.ResourceRequirements{Limits: limits},
		})
	}
	return p
}

func measure(ctx context.Context, client kubernetes.Interface, b *bindings) error {
	memory := corev1.ResourceList{ack.ResourceMemory: resource.MustParse("1")}
	kinds := []*kind{
		{name: "a container, no GPU", pod: pod(1, nil)},
		{name: "a container with gpu-mem", pod: pod(1, memory)},
		{name: "8 containers with gpu-mem", pod: pod(8, memory)},
	}
	for range turns {
		for _, on := range []bool{true, false} {
			change := b.bind
			if !on {
				change = b.unbind
			}
			if on != b.bound {
				if err := change(ctx); err != nil {
					return err
				}
			}
			if err := takesEffect(ctx, client, kinds[1].pod, on); err != nil {
				return err
			}
			if err := turn(ctx, client, kinds, on); err != nil {
				return err
			}
		}
	}
	fmt.Printf("Bound: %d mutating and %d validating policies.\n\n", len(b.mutating), len(b.validating))
	fmt.Printf("| create a pod (dry run), p50 / p99 | policies off | on | added at p50 |\n|---|---|---|---|\n")
	for _, k := range kinds {
		fmt.Printf("| %s | %s | %s | %s ms |\n", k.name, k.off.Summary(0.5, 0.99), k.on.Summary(0.5, 0.99),
			stats.Milliseconds(k.on.Quantile(0.5)-k.off.Quantile(0.5)))
	}
	return nil
}

// takesEffect waits until the API server converts pods, or does not any more.
func takesEffect(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, on bool) error {
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			got, err := create(ctx, client, pod)
			// While one of the policies is known and the other is not, the pod is refused.
			return err == nil && (len(got.Spec.ResourceClaims) > 0) == on, nil
		})
	if err != nil {
		return fmt.Errorf("wait for the bindings to take effect: %w", err)
	}
	return nil
}

func turn(ctx context.Context, client kubernetes.Interface, kinds []*kind, on bool) error {
	for range perTurn {
		for _, k := range kinds {
			began := time.Now()
			if _, err := create(ctx, client, k.pod); err != nil {
				return fmt.Errorf("create a pod of %s: %w", k.name, err)
			}
			took := time.Since(began)
			if on {
				k.on = append(k.on, took)
			} else {
				k.off = append(k.off, took)
			}
		}
	}
	return nil
}

func create(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) (*corev1.Pod, error) {
	return client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// kindLabel says of a pod of the burst which line of burstOf it is of.
const kindLabel = "e2e-burst"

// heldFor is how long a pod of the burst that ends by itself holds its GPUs.
const heldFor = "1s"

// burstTimeout is how long all of the burst may take, refused claims that the
// kubelet tries again included.
const burstTimeout = 3 * harness.Timeout

// What makes a pod of the burst.
const (
	bare       = "pod"
	job        = "job"
	deployment = "deployment"
)

// burstOf are 500 pods that ask for several times what the nodes of their modes have. Those of Deployments stay, the
// others end by themselves. However those that stay come to lie, some GPU has room for each of the others: of 20 shares
// of a unit on four GPUs of 15, no more than five are on the emptiest.
var burstOf = []struct {
	made   string
	count  int
	mode   string
	limits []string
	// GPUs is what the label aliyun.com/gpu-count says.
	gpus int64
}{
	{deployment, 50, "share", []string{"mem 1"}, 1},
	{deployment, 20, "mps", []string{"mem 1"}, 1},
	{deployment, 20, "core_mem", []string{"mem 1 core 5"}, 1},
	{job, 50, "share", []string{"mem 3"}, 1},
	{job, 30, "share", []string{"mem 2", "mem 4"}, 1},
	{job, 20, "share", []string{"mem 10"}, 2},
	{job, 30, "mps", []string{"mem 5"}, 1},
	{job, 30, "core_mem", []string{"mem 3 core 20"}, 1},
	{job, 15, "topology", []string{"gpu 2"}, 1},
	{job, 20, "topology", []string{"gpu 1"}, 1},
	{bare, 90, "share", []string{"mem 2"}, 1},
	{bare, 20, "share", []string{"mem 5"}, 1},
	{bare, 20, "share", []string{"mem 7"}, 1},
	{bare, 20, "share", []string{"mem 8"}, 4},
	{bare, 20, "mps", []string{"mem 1", "mem 7"}, 1},
	{bare, 8, "mps", []string{"mem 10"}, 1},
	{bare, 20, "core_mem", []string{"mem 2 core 50"}, 1},
	{bare, 6, "core_mem", []string{"mem 10 core 75"}, 1},
	{bare, 5, "topology", []string{"gpu 3"}, 1},
	{bare, 5, "topology", []string{"gpu 4"}, 1},
	{bare, 1, "topology", []string{"gpu 8"}, 1},
}

// burstPod is a pod of a line of burstOf.
func burstPod(kind int) *corev1.Pod {
	k := burstOf[kind]
	pod := harness.Asking(k.limits...)
	pod.Labels = map[string]string{kindLabel: strconv.Itoa(kind)}
	if k.gpus > 1 {
		pod.Labels[ack.PodLabelCount] = strconv.FormatInt(k.gpus, 10)
	}
	pod.Spec.NodeSelector = map[string]string{modeLabel: k.mode}
	if k.made == deployment {
		return pod
	}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Args = []string{"for", heldFor}
	}
	return pod
}

// burst is what a test knows of the pods that it has made.
type burst struct {
	namespaces []*harness.Namespace
	// pods are those that the API server told of, one lister per namespace.
	pods []corelisters.PodNamespaceLister
	// refused are pods that were allocated a GPU that others hold, and are deleted for it. gone says of them whether
	// they are, and bare ones made again; owners make the others again.
	refused map[types.UID]string
	gone    map[types.UID]bool
	// late are pods that their node's container runtime did not start in its time, and that their Jobs created again.
	late map[types.UID]string
	// looked is when Events of such pods were looked for last, goneErr what came of it.
	looked  time.Time
	goneErr error
}

const (
	// lookAgain is how often Events are looked for of pods that were refused.
	lookAgain = 2 * time.Second
	// refusedFor is for how long others may hold a pod's GPU: most end in that time if they are about to.
	refusedFor = 15 * time.Second
)

// promisedTwice is what the driver says of a GPU that was allocated although it is
// taken.
const promisedTwice = "a GPU would be promised twice"

func newBurst(t *testing.T, namespaces int) *burst {
	t.Helper()
	b := &burst{refused: map[types.UID]string{}, gone: map[types.UID]bool{}, late: map[types.UID]string{}}
	for range namespaces {
		ns := cluster.Namespace(t)
		factory := informers.NewSharedInformerFactoryWithOptions(ns.Client, 0, informers.WithNamespace(ns.Name))
		pods := factory.Core().V1().Pods()
		synced := pods.Informer().HasSynced
		factory.StartWithContext(t.Context())
		if !cache.WaitForCacheSync(t.Context().Done(), synced) {
			t.Fatal(context.Cause(t.Context()))
		}
		b.namespaces = append(b.namespaces, ns)
		b.pods = append(b.pods, pods.Lister().Pods(ns.Name))
	}
	return b
}

func (b *burst) namespace(kind int) *harness.Namespace { return b.namespaces[kind%len(b.namespaces)] }

// total is how many pods are made.
func (b *burst) total() int {
	total := 0
	for _, k := range burstOf {
		total += k.count
	}
	return total
}

// start makes everything of the burst as fast as it goes, several at once, while the
// API server may come and go. The returned function waits for it.
func (b *burst) start(t *testing.T) (wait func()) {
	t.Helper()
	const atOnce = 8
	work := make(chan func(ctx context.Context) error)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for create := range work {
				err := harness.Poll(t.Context(), harness.Timeout, func(ctx context.Context) error {
					// That it is there is what became of an answer that was lost.
					if err := create(ctx); err != nil && !apierrors.IsAlreadyExists(err) {
						return err
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		defer close(work)
		for kind := range burstOf {
			for _, create := range b.creates(kind) {
				work <- create
			}
		}
	})
	t.Cleanup(wg.Wait)
	return wg.Wait
}

// creates is what makes the pods of a line of burstOf.
func (b *burst) creates(kind int) []func(context.Context) error {
	k, ns, pod := burstOf[kind], b.namespace(kind), burstPod(kind)
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", k.made, kind)}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}
	count := ptr.To(int32(k.count))
	switch k.made {
	case deployment:
		object := harness.Deployment(meta.Name, k.count, pod)
		return []func(context.Context) error{func(ctx context.Context) error {
			_, err := ns.Client.AppsV1().Deployments(ns.Name).Create(ctx, object, metav1.CreateOptions{})
			return err
		}}
	case job:
		object := &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: count, Completions: count,
			Template: template}}
		return []func(context.Context) error{func(ctx context.Context) error {
			_, err := ns.Client.BatchV1().Jobs(ns.Name).Create(ctx, object, metav1.CreateOptions{})
			return err
		}}
	}
	var creates []func(context.Context) error
	for i := range k.count {
		creates = append(creates, b.createBare(kind, fmt.Sprintf("%s-%d", meta.Name, i)))
	}
	return creates
}

func (b *burst) createBare(kind int, name string) func(context.Context) error {
	ns, pod := b.namespace(kind), burstPod(kind)
	pod.Name = name
	return func(ctx context.Context) error {
		_, err := ns.Client.CoreV1().Pods(ns.Name).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
}

// progress counts the pods that are there, and those that have got what they asked
// for: they have ended, or stay and run. A pod that failed by itself is an error.
func (b *burst) progress() (there, served int, err error) {
	for _, lister := range b.pods {
		pods, err := lister.List(labels.Everything())
		if err != nil {
			return 0, 0, err
		}
		there += len(pods)
		for _, pod := range pods {
			switch {
			case pod.DeletionTimestamp != nil:
				// It is created again; a pod that is evicted before it has run fails, too.
			case ranOutOfTime(pod) && pod.Labels[batchv1.JobNameLabel] != "":
				// Its Job makes another.
				there--
				b.late[pod.UID] = pod.Name + ": " + harness.WhyFailed(pod)
			case pod.Status.Phase == corev1.PodFailed:
				return 0, 0, fmt.Errorf("pod %s/%s on node %s failed: %s", pod.Namespace, pod.Name, pod.Spec.NodeName,
					harness.WhyFailed(pod))
			case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodRunning &&
				pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
				served++
			}
		}
	}
	return there, served, nil
}

// lateMost is how many pods a machine that has too much to do may start too late.
const lateMost = 3

// ranOutOfTime reports whether a pod failed because the container runtime, or the kubelet that waited for it, gave
// up: no program of the pod has ended by itself, and no hook of the driver's has failed.
func ranOutOfTime(pod *corev1.Pod) bool {
	late := false
	for _, status := range pod.Status.ContainerStatuses {
		ended := status.State.Terminated
		switch {
		case ended == nil || ended.ExitCode == 0:
		case ended.Reason == "ContainerStatusUnknown", ended.Reason == "StartError" &&
			strings.Contains(ended.Message, "deadline exceeded") && !strings.Contains(ended.Message, "hook"):
			late = true
		default:
			return false
		}
	}
	return late && pod.Status.Phase == corev1.PodFailed
}

// waitFor waits until the condition on what is there and served holds, and deletes pods that are refused meanwhile.
func (b *burst) waitFor(t *testing.T, what string, condition func(there, served int) bool) {
	t.Helper()
	var failed error
	harness.Within(t, burstTimeout, what, func(ctx context.Context) error {
		there, served, err := b.progress()
		if err != nil {
			failed = err
			return nil
		}
		if condition(there, served) {
			return nil
		}
		if err = errors.Join(fmt.Errorf("%d pods are there, %d have had their GPUs", there, served), b.goneErr); time.Since(
			b.looked) < lookAgain {
			return err
		}
		b.goneErr, b.looked = b.deleteRefused(ctx), time.Now()
		return err
	})
	if failed != nil {
		t.Fatalf("waited for %s: %v", what, failed)
	}
}

// deleteRefused deletes pods that the driver refuses because others hold the GPU that they were allocated, as
// docs/troubleshooting.md says. A scheduler whose write the API server took without an answer forgets it for a moment,
// and may allocate the GPU again: docs/internals/development.md.
func (b *burst) deleteRefused(ctx context.Context) error {
	var errs []error
	for _, ns := range b.namespaces {
		events, err := ns.Client.CoreV1().Events(ns.Name).List(ctx,
			metav1.ListOptions{FieldSelector: "reason=" + failedPrepare})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			uid := event.InvolvedObject.UID
			if strings.Contains(event.Message, promisedTwice) && !b.gone[uid] &&
				time.Since(event.FirstTimestamp.Time) >= refusedFor {
				deleted, err := b.remake(ctx, ns, event.InvolvedObject)
				if deleted {
					b.refused[uid] = "pod " + ns.Name + "/" + event.InvolvedObject.Name + " was refused and deleted"
				}
				b.gone[uid] = err == nil
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// remake deletes a pod that waits and, if it is bare, makes it again. It returns an error until
// that is done.
func (b *burst) remake(ctx context.Context, ns *harness.Namespace, refused corev1.ObjectReference) (deleted bool,
	err error) {
	pods := ns.Client.CoreV1().Pods(ns.Name)
	pod, err := pods.Get(ctx, refused.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		var kind, number int
		if _, err := fmt.Sscanf(refused.Name, bare+"-%d-%d", &kind, &number); err != nil {
			return false, nil // its owner makes another
		}
		return false, b.createBare(kind, refused.Name)(ctx)
	case err != nil:
		return false, err
	case pod.UID != refused.UID:
		return false, nil
	case pod.DeletionTimestamp != nil:
	case !podstate.AwaitsClaims(pod):
		return false, nil // the kubelet tried again, and the GPU was free
	default:
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		deleted = err == nil
	}
	return deleted, errors.Join(fmt.Errorf("pod %s was refused and is not gone", pod.Name), err)
}

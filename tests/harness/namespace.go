// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Namespace is a test's own namespace.
type Namespace struct {
	*Cluster
	Name string
	// began is when the test began, to tell its log lines from earlier ones.
	began time.Time
	// claims are all that were in the namespace at any time.
	claims *seenClaims
}

// Namespace makes a namespace for the test. When the test ends, its workloads,
// pods and claims are deleted, and it fails where anything of them stays: a ResourceClaim,
// or a CDI spec or a state file on any node. Where the test failed before,
// that is preceded by a description of what is there.
func (c *Cluster) Namespace(t *testing.T, options ...func(*corev1.Namespace)) *Namespace {
	t.Helper()
	c.work(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-" + dnsName(t.Name()) + "-"}}
	for _, option := range options {
		option(namespace)
	}
	created, err := c.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	expect.NoErrorf(t, err, "make a namespace")
	n := &Namespace{Cluster: c, Name: created.Name, began: time.Now(), claims: &seenClaims{uids: map[types.UID]bool{}}}
	t.Cleanup(func() { n.cleanUp(t) })
	expect.NoErrorf(t, n.claims.watch(t.Context(), c.Client, n.Name), "watch the claims of namespace %s", n.Name)
	Eventually(t, "the namespace's ServiceAccount, without which no pod is taken", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(n.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return n
}

// Preemption has a namespace take part in preemption.
func Preemption(n *corev1.Namespace) {
	n.Labels = map[string]string{v1alpha1.LabelPreemption: "true"}
}

// dnsName makes a piece of an object's name of the name of a test.
func dnsName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimPrefix(name, "Test")))
	return strings.Trim(name[:min(len(name), 40)], "-")
}

// seenClaims collects the UIDs of a namespace's claims as they come.
type seenClaims struct {
	mu   sync.Mutex
	uids map[types.UID]bool
}

func (s *seenClaims) has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uids[uid]
}

func (s *seenClaims) add(object any) {
	if claim, ok := object.(*resourceapi.ResourceClaim); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.uids[claim.UID] = true
	}
}

// watch collects until the context ends.
func (s *seenClaims) watch(ctx context.Context, client kubernetes.Interface, namespace string) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Resource().V1().ResourceClaims().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: s.add}); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

func (n *Namespace) cleanUp(t *testing.T) {
	// The test's own context has ended by now.
	ctx, cancel := context.WithTimeout(context.Background(), 2*Patience)
	defer cancel()
	if t.Failed() {
		t.Log(n.Describe(ctx))
	}
	if err := errors.Join(n.empty(ctx), n.CheckNothingLeft(ctx)); err != nil {
		t.Errorf("cleaning up: %v", err)
		t.Log(n.Describe(ctx))
	}
	if err := n.Client.CoreV1().Namespaces().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete namespace %s: %v", n.Name, err)
	}
}

// empty deletes workloads, pods and claims and waits until they are gone. Workloads go
// first, since they make their pods again, and pods before their claims, which are
// reserved until then.
func (n *Namespace) empty(ctx context.Context) error {
	if err := n.deleteWorkloads(ctx); err != nil {
		return fmt.Errorf("delete the workloads of %s: %w", n.Name, err)
	}
	if err := n.Client.CoreV1().Pods(n.Name).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the pods of %s: %w", n.Name, err)
	}
	if err := Poll(ctx, Patience, n.noPods); err != nil {
		return err
	}
	if err := n.Client.ResourceV1().ResourceClaims(n.Name).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the claims of %s: %w", n.Name, err)
	}
	return nil
}

func (n *Namespace) deleteWorkloads(ctx context.Context) error {
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	apps := n.Client.AppsV1()
	return errors.Join(
		apps.Deployments(n.Name).DeleteCollection(ctx, options, metav1.ListOptions{}),
		apps.ReplicaSets(n.Name).DeleteCollection(ctx, options, metav1.ListOptions{}),
		apps.StatefulSets(n.Name).DeleteCollection(ctx, options, metav1.ListOptions{}),
		apps.DaemonSets(n.Name).DeleteCollection(ctx, options, metav1.ListOptions{}),
		n.Client.BatchV1().Jobs(n.Name).DeleteCollection(ctx, options, metav1.ListOptions{}),
	)
}

func (n *Namespace) noPods(ctx context.Context) error {
	pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("%d pods of %s are not gone, the first is %s", len(pods.Items), n.Name, pods.Items[0].Name)
	}
	return nil
}

// CheckNothingLeft waits until no ResourceClaim is left in the namespace and no
// node keeps anything of one.
func (n *Namespace) CheckNothingLeft(ctx context.Context) error {
	return Poll(ctx, Patience, func(ctx context.Context) error {
		claims, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(claims.Items) > 0 {
			return fmt.Errorf("%d ResourceClaims of %s are not gone, the first is %s", len(claims.Items), n.Name,
				claims.Items[0].Name)
		}
		nodes, err := n.NodeNames()
		if err != nil {
			return err
		}
		var left []error
		for _, node := range nodes {
			left = append(left, n.leftovers(node, n.claims.has))
		}
		return errors.Join(left...)
	})
}

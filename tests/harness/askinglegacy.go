// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// Limited is a container with limits as in Asking.
func Limited(name, amounts string) corev1.Container {
	short := map[string]corev1.ResourceName{"mem": ack.ResourceMemory, "core": ack.ResourceCores, "gpu": ack.ResourceGPUs,
		"count": ack.ResourceCount}
	c := corev1.Container{Name: name, Image: ProbeImage, ImagePullPolicy: corev1.PullNever}
	fields := strings.Fields(amounts)
	for i := 0; i+1 < len(fields); i += 2 {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		name := corev1.ResourceName(fields[i])
		if long, ok := short[fields[i]]; ok {
			name = long
		}
		c.Resources.Limits[name] = resource.MustParse(fields[i+1])
	}
	return c
}

// Asking is a pod whose containers c0, c1, … have such limits, each given as in
// "mem 3 core 20".
func Asking(limits ...string) *corev1.Pod {
	pod := Pod("p", "any")
	pod.Spec.NodeSelector, pod.Spec.Containers = nil, nil
	for i, amounts := range limits {
		pod.Spec.Containers = append(pod.Spec.Containers, Limited(fmt.Sprintf("c%d", i), amounts))
	}
	return pod
}

// Labelled is the pod with this label and no other.
func Labelled(pod *corev1.Pod, key, value string) *corev1.Pod {
	pod.Labels = map[string]string{key: value}
	return pod
}

// Changed is the pod after a change.
func Changed(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(pod)
	return pod
}

// On gives pods that name no node to one: legacy pods go where they fit.
func On(node string, pods ...*corev1.Pod) []*corev1.Pod {
	for _, pod := range pods {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	return pods
}

// Bound is a pod as a scheduler of ACK binds it to a node, with its annotations.
func Bound(pod *corev1.Pod, name, node string, annotations ...string) *corev1.Pod {
	pod.Name, pod.Spec.NodeName, pod.Spec.NodeSelector = name, node, nil
	for i := 0; i < len(annotations); i += 2 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotations[i], annotations[i+1])
	}
	return pod
}

// GoingTo names an unchanged pod that is to go to a node.
func GoingTo(pod *corev1.Pod, name, node string) *corev1.Pod {
	pod.Name = name
	return On(node, pod)[0]
}

// DryRun asks the API server without storing anything.
var DryRun = []string{metav1.DryRunAll}

// Admitted is what the API server makes of a pod, which is not stored.
func (n *Namespace) Admitted(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return n.Client.CoreV1().Pods(n.Name).Create(ctx, pod, metav1.CreateOptions{DryRun: DryRun})
}

// CheckRefusal checks that what was asked of the API server was refused with a text in
// the error, or, where that is empty, was not refused.
func CheckRefusal(t *testing.T, what, refused string, err error) {
	t.Helper()
	switch {
	case refused == "" && err != nil:
		t.Errorf("%s refused: %v", what, err)
	case refused != "" && err == nil:
		t.Errorf("%s taken, want it refused with %q", what, refused)
	case refused != "" && !strings.Contains(err.Error(), refused):
		t.Errorf("%s refused with %q, want %q in it", what, err, refused)
	}
}

// Document is the object of a file of demo/legacy.
func Document[T any](t *testing.T, path ...string) *T {
	t.Helper()
	content, err := os.ReadFile(DemoLegacy(path...))
	expect.NoError(t, err)
	object := new(T)
	expect.NoErrorf(t, yaml.UnmarshalStrict(content, object), "%s", filepath.Join(path...))
	return object
}

// DemoLegacy is a path below demo/legacy.
func DemoLegacy(path ...string) string {
	return filepath.Join(append([]string{"..", "..", "..", "demo", "legacy"}, path...)...)
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
)

func driverPod(name string, restarts int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare"}},
		Spec: corev1.PodSpec{ServiceAccountName: pluginName, Containers: []corev1.Container{{Name: "plugin",
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "plugin", Ready: true,
			RestartCount: restarts}}},
	}
}

// What may not be read is noted, and the rest is there.
func TestBundleInput(t *testing.T) {
	driver := metav1.ObjectMeta{Namespace: "gpu", Name: "driver",
		Labels: map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare"}}
	labelled := driverPod("c", 1)
	labelled.Namespace, labelled.Spec = "team", corev1.PodSpec{}
	users := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main"}}}}
	controller := &appsv1.Deployment{ObjectMeta: *driver.DeepCopy()}
	controller.Name, controller.Spec.Template.Spec.ServiceAccountName = "controller", "gpu-compat-controller"
	controller.Spec.Template.Spec.Containers = []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{
			Name: "gpu-compat-controller"}}}}}}
	objects := []runtime.Object{controller,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "gpu-compat-controller"}},
		driverPod("a", 0), driverPod("b", 1), labelled, users,
		&appsv1.DaemonSet{ObjectMeta: driver},
		&corev1.ConfigMap{ObjectMeta: driver},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "other"}}}
	for name, test := range map[string]struct {
		forbidden string
		logs      string
		missing   string
	}{
		"all rights": {"", "b_plugin.log b_plugin.previous.log a_plugin.log", ""},
		"no logs":    {"pods/log", "", "logs of namespace gpu: you may not get pods/log there"},
		"no slices":  {"resourceslices", "b_plugin.log b_plugin.previous.log a_plugin.log", "the table: the GPUs are in"},
		"no settings": {"configmaps", "b_plugin.log b_plugin.previous.log a_plugin.log", "configmaps of namespace " +
			"gpu: configmaps"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(objects...)
			client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				what := action.GetResource().Resource
				if action.GetSubresource() != "" {
					what += "/" + action.GetSubresource()
				}
				if what != test.forbidden {
					return false, nil, nil
				}
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: what}, "", nil)
			})
			in, err := Reader{Client: client}.BundleInput(t.Context(), "v1")
			expect.NoError(t, err)
			var logs []string
			for _, l := range in.Logs {
				logs = append(logs, strings.TrimPrefix(l.Name(), "logs/gpu/"))
			}
			expect.Equal(t, test.logs, strings.Join(logs, " "), "logs")
			if got := strings.Join(in.Missing, "\n"); !strings.HasPrefix(got, test.missing) || strings.Contains(got, "\n") ||
				test.missing == "" && got != "" {
				t.Errorf("missing %q, want %q", got, test.missing)
			}
			if test.forbidden != "configmaps" && len(in.ConfigMaps) != 1 {
				t.Errorf("ConfigMaps %v", in.ConfigMaps)
			}
			files, err := bundle.Files(in)
			expect.NoError(t, err)
			settings := files[slices.IndexFunc(files, func(f bundle.File) bool { return f.Name == "driver/configmaps.yaml" })]
			for _, name := range []string{"driver", "gpu-compat-controller"} {
				if want := test.forbidden != "configmaps"; strings.Contains(string(settings.Data), "name: "+name+"\n") != want {
					t.Errorf("%s is in it: %v, want %v:\n%s", name, !want, want, settings.Data)
				}
			}
		})
	}
}

func TestTheEndOfALog(t *testing.T) {
	for name, test := range map[string]struct {
		text, want string
		cut        bool
	}{
		"all":   {"a\nb\n", "a\nb\n", false},
		"lines": {strings.Repeat("line\n", 100_000), "line\nline\n", true},
		"empty": {"", "", false},
	} {
		text, cut, err := ending(strings.NewReader(test.text), 12)
		if err != nil || string(text) != test.want || cut != test.cut {
			t.Errorf("%s: got %q, %v, %v", name, text, cut, err)
		}
	}
}

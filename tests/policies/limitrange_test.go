// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// amountsOf are amounts of ACK's resources, written as for limited.
func amountsOf(amounts string) corev1.ResourceList {
	list := limited("", amounts).Resources.Limits
	delete(list, corev1.ResourceCPU)
	return list
}

// ranges are what the LimitRanges of namespaces of these names say, as it is stored: a maximum of containers is their
// default.
func ranges() map[string]corev1.LimitRangeItem {
	const container = corev1.LimitTypeContainer
	return map[string]corev1.LimitRangeItem{
		"max-8":            {Type: container, Max: amountsOf("mem 8 core 50"), Default: amountsOf("mem 8 core 50")},
		"max-8-or-none":    {Type: container, Max: amountsOf("mem 8"), Default: amountsOf("mem 0")},
		"default-3":        {Type: container, Default: amountsOf("mem 3")},
		"pods-8":           {Type: corev1.LimitTypePod, Max: amountsOf("mem 8")},
		"min-2":            {Type: container, Min: amountsOf("mem 2"), Max: amountsOf("mem 8"), Default: amountsOf("mem 8")},
		"max-2-whole-gpus": {Type: container, Max: amountsOf("gpu 2"), Default: amountsOf("gpu 0")},
	}
}

// withRanges is a server with these LimitRanges.
func withRanges(t *testing.T) *server {
	t.Helper()
	return shared("with LimitRanges", func() *server {
		var objects []runtime.Object
		for name, item := range ranges() {
			objects = append(objects, namespace(name), &corev1.LimitRange{
				ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "gpu"},
				Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}})
		}
		return newServerWith(t, objects)
	})
}

// ranged is what becomes of a new pod where LimitRanger gives containers the default of its namespace, before the
// policies and, as what they have changed it looks at again, after them.
func (s *server) ranged(p *corev1.Pod) (*corev1.Pod, error) {
	setDefaults := func(p *corev1.Pod) {
		for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range containers {
				for name, amount := range ranges()[p.Namespace].Default {
					for _, list := range []*corev1.ResourceList{&containers[i].Resources.Limits, &containers[i].Resources.Requests} {
						if *list == nil {
							*list = corev1.ResourceList{}
						}
						if _, is := (*list)[name]; !is {
							(*list)[name] = amount
						}
					}
				}
			}
		}
	}
	p = p.DeepCopy()
	setDefaults(p)
	return s.createBefore(setDefaults, p)
}

// limitsOf are the limits of ACK's resources that containers have.
func limitsOf(p *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, c := range members(p) {
		for name, amount := range c.Resources.Limits {
			if request := c.Resources.Requests[name]; name != corev1.ResourceCPU && request.Cmp(amount) == 0 {
				out[c.Name+" "+string(name)] = amount.String()
			}
		}
	}
	return out
}

// LimitRanger compares its maximum with the limits that a pod has in the end, and gives the default to containers that
// have none.
func TestLimitRangesAsOnACK(t *testing.T) {
	s := withRanges(t)
	const memory, cores, gpus = " aliyun.com/gpu-mem", " aliyun.com/gpu-core.percentage", " aliyun.com/gpu"
	for name, test := range map[string]struct {
		pod      *corev1.Pod
		template string
		// limits are what LimitRanger finds; those that are not 0 are past its maximum.
		limits map[string]string
	}{
		"below the maximum": {podOf("max-8", limited("c", "mem 4 core 20")), "gpushare.core.c.4-20",
			map[string]string{"c" + memory: "0", "c" + cores: "0"}},
		"past it": {podOf("max-8", limited("c", "mem 12 core 20")), "gpushare.core.c.12-20",
			map[string]string{"c" + memory: "12", "c" + cores: "0"}},
		"a maximum, and no default": {podOf("max-8-or-none", limited("c", "mem 4"), limited("d", "")),
			"gpushare.mem.c.4", map[string]string{"c" + memory: "0", "d" + memory: "0"}},
		"past that": {podOf("max-8-or-none", limited("c", "mem 4"), limited("d", "mem 9")), "gpushare.mem.c.4.d.9",
			map[string]string{"c" + memory: "4", "d" + memory: "9"}},
		"nothing, and no default": {podOf("max-8-or-none", limited("c", "")), "", map[string]string{"c" + memory: "0"}},
		"the default": {podOf("default-3", limited("c", "")), "gpushare.mem.c.3",
			map[string]string{"c" + memory: "0"}},
		"another than the default": {podOf("default-3", limited("c", "mem 4"), limited("d", "")), "gpushare.mem.c.4.d.3",
			map[string]string{"c" + memory: "0", "d" + memory: "0"}},
		"init containers": {withInit(podOf("max-8", limited("c", "mem 4 core 20")), limited("i", "mem 9 core 20")),
			"gpushare.core.c.4-20", map[string]string{"c" + memory: "4", "c" + cores: "0", "i" + memory: "9", "i" + cores: "0"}},
		"of a pod": {podOf("pods-8", limited("c", "mem 4"), limited("d", "mem 4"), limited("e", "")),
			"gpushare.mem.c.4.d.4", map[string]string{"c" + memory: "0", "d" + memory: "0"}},
		"past that of a pod": {podOf("pods-8", limited("c", "mem 4"), limited("d", "mem 5")), "gpushare.mem.c.4.d.5",
			map[string]string{"c" + memory: "4", "d" + memory: "5"}},
		"whole GPUs": {podOf("max-2-whole-gpus", limited("c", "gpu 2")), "gpushare.gpu.c.2",
			map[string]string{"c" + gpus: "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.ranged(test.pod)
			if got == nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.limits, limitsOf(got)); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			expect.Equal(t, test.template, template(got), "the template")
			over := false
			for _, limit := range test.limits {
				over = over || limit != "0"
			}
			if !over {
				expect.Error(t, err)
				if why := got.Annotations[v1alpha1.AnnotationNotConverted]; why != "" {
					t.Errorf("it is said not to be converted: %s", why)
				}
			}
		})
	}
	// 0 is below a minimum, and nothing else would say so to the pod's author.
	_, err := s.ranged(podOf("min-2", limited("c", "mem 4")))
	expect.Error(t, err, "if a LimitRange of namespace min-2 sets them")
}

// Whoever edits the copy of a pod that was converted may not get its old amount without being told.
func TestLimitsThatNoLimitRangeSets(t *testing.T) {
	s := withRanges(t)
	made, err := s.ranged(podOf("max-8", limited("c", "mem 4 core 20")))
	expect.NoError(t, err)
	edited := changed(made.DeepCopy(), func(p *corev1.Pod) {
		of := &p.Spec.Containers[0].Resources
		of.Limits[ack.ResourceMemory], of.Requests[ack.ResourceMemory] = resource.MustParse("5"), resource.MustParse("5")
	})
	_, err = s.ranged(edited)
	expect.Error(t, err, "if a LimitRange of namespace max-8 sets them")
}

// What a LimitRange left of the limits stays when the manifest is applied again.
func TestPodsOfALimitRangeAppliedAgain(t *testing.T) {
	s := withRanges(t)
	manifest := podOf("max-8", limited("c", "mem 4 core 20"))
	made, err := s.ranged(manifest)
	expect.NoError(t, err)
	got, err := s.update(made, applied(made, manifest))
	if diff := cmp.Diff(made, got); err != nil || diff != "" {
		t.Errorf("%v (-before +after):\n%s", err, diff)
	}
}

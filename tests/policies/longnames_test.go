// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Names of containers that do not fit into a template's name, or into those of requests, keep no pod
// from being converted: the template calls its containers by their places then.
func TestPodsWithLongNames(t *testing.T) {
	s := newServer(t)
	long := strings.Repeat("a", 62)
	two := map[string]string{ack.PodLabelCount: "2"}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string // the template's name and who uses it
	}{
		"that just fit": {pod("p", nil, limited(long, "mem 1"), limited(long+"b", "mem 1"), limited(long+"c",
			"mem 1"), limited(long[:41], "mem 1")),
			"gpushare.mem." + long + ".1." + long + "b.1." + long + "c.1." + long[:41] + ".1 " + long + ":" + long + " " + long +
				"b:" + long + "b " + long + "c:" + long + "c " + long[:41] + ":" + long[:41]},
		"that just do not": {pod("p", nil, limited(long, "mem 1"), limited(long+"b", "mem 1"), limited(long+"c",
			"mem 1"), limited(long[:42], "mem 1")),
			"gpushare.mem.0.1.1.1.2.1.3.1 " + long + ":0 " + long + "b:1 " + long + "c:2 " + long[:42] + ":3"},
		"and who uses what": {withInit(pod("p", nil, limited("0", ""), limited(long+"a", "mem 1"),
			limited(long+"b", "mem 2"), limited(long+"c", "mem 3")), sidecar(limited(long+"s", "mem 4")),
			limited("i", "mem 9")), "gpushare.mem.0.1.1.2.2.3.3.4 " + long + "a:0 " + long + "b:1 " + long + "c:2 " + long +
			"s:3 i:0"},
		"of GPUs": {pod("p", nil, limited(long+"a", "gpu 1"), limited(long+"b", "gpu 2"), limited(long+"c",
			"gpu 4"), limited(long+"d", "gpu 8")),
			"gpushare.gpu.0.1.1.2.2.4.3.8 " + long + "a:0 " + long + "b:1 " + long + "c:2 " + long + "d:3"},
		"that just fit with a GPU": {pod("p", two, limited(long[:56], "mem 2"), limited("b", "mem 2")),
			"gpushare.mem-x2." + long[:56] + ".2.b.2 " + long[:56] + ":" + long[:56] + "-card0 " + long[:56] + ":" + long[:56] +
				"-card1 b:b-card0 b:b-card1"},
		"that do not with a GPU": {pod("p", two, limited(long[:57], "mem 2"), limited("b", "mem 2")),
			"gpushare.mem-x2.0.2.1.2 " + long[:57] + ":0-card0 " + long[:57] + ":0-card1 b:1-card0 b:1-card1"},
		"alone with GPUs": {pod("p", two, limited(long+"a", "mem 2")),
			"gpushare.mem-x2." + long + "a.2 " + long + "a:" + long + "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			expect.NoError(t, err)
			if template(got)+" "+uses(got) != test.want {
				t.Errorf("template %s, used %s, want %q", template(got), uses(got), test.want)
			}
			checkOfPod(t, test.pod, template(got), nil)
		})
	}
}

// Whatever can be had has a name: as many containers as a claim can serve, all with the longest
// names and amounts. Those that are looked for long are so where costly claims are allowed.
func TestAsManyLongNamesAsCanBe(t *testing.T) {
	s := newServer(t)
	for name, test := range map[string]struct {
		containers int
		amounts    string
		labels     map[string]string
		refused    string
	}{
		"memory":           {16, "mem 999", nil, ""},
		"compute":          {16, "mem 999 core 100", nil, ""},
		"of two GPUs":      {16, "mem 1998 core 200", map[string]string{ack.PodLabelCount: "2"}, ""},
		"whole":            {16, "mem 999", map[string]string{ack.PodLabelPlacement: ack.RequireWholeDevice}, ""},
		"GPUs":             {32, "gpu 1", nil, ""},
		"more than can be": {32, "mem 999 core 100", nil, "more compute together than a GPU has"},
	} {
		t.Run(name, func(t *testing.T) {
			var containers []corev1.Container
			for i := range test.containers {
				containers = append(containers, limited(fmt.Sprintf("%s%02d", strings.Repeat("a", 61), i), test.amounts))
			}
			p := pod("p", test.labels, containers...)
			want, wantErr := model(p)
			got, err := s.create(p)
			expect.Error(t, err, test.refused)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("error %v, the model's %v", err, wantErr)
			}
			checkOfPod(t, p, want, err)
			if err != nil {
				return
			}
			request, err := legacy.ParseName(template(got))
			if err != nil || template(got) != want {
				t.Fatalf("template %q, want %q: %v", template(got), want, err)
			}
			// Each request of the claim is for one container.
			unused := map[string]bool{}
			for _, r := range request.Template(got.Namespace).Spec.Spec.Devices.Requests {
				unused[r.Name] = true
			}
			for _, c := range got.Spec.Containers {
				for _, use := range c.Resources.Claims {
					if !unused[use.Request] {
						t.Errorf("container %s uses a request %q, which is not there or another's", c.Name, use.Request)
					}
					delete(unused, use.Request)
				}
			}
			if len(unused) > 0 {
				t.Errorf("nobody uses %v", unused)
			}
		})
	}
}

// Who may have less is told whose amount it is.
func TestLongNamesAndTheOptionShareLimit(t *testing.T) {
	s := newServer(t)
	long := strings.Repeat("a", 62)
	p := in(bounded, pod("p", map[string]string{ack.PodLabelCount: "2"}, limited(long+"a", "mem 16 core 50"),
		limited(long+"b", "mem 18 core 120")))
	_, err := s.create(p)
	expect.Error(t, err, "container "+long+"b asks for aliyun.com/gpu-mem 18 of 2 GPUs")
	p.Namespace = boundedCores
	_, err = s.create(p)
	expect.Error(t, err, "container "+long+"b asks for aliyun.com/gpu-core.percentage 120 of 2 GPUs")
}

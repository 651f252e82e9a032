// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func names(classes []*resourceapi.DeviceClass) []string {
	out := []string{}
	for _, class := range classes {
		out = append(out, class.Name+" of "+model(class))
	}
	return out
}

// made are the classes as the controller makes them.
func made(t *testing.T, models ...view.Model) []*resourceapi.DeviceClass {
	t.Helper()
	p, err := newPlan(models, nil, nil)
	expect.NoError(t, err)
	return p.create
}

// changed is the first class after a change.
func changed(classes []*resourceapi.DeviceClass, change func(*resourceapi.DeviceClass)) []*resourceapi.DeviceClass {
	class := classes[0].DeepCopy()
	change(class)
	return append([]*resourceapi.DeviceClass{class}, classes[1:]...)
}

var (
	a10   = view.Model{Name: "NVIDIA-A10", Modes: []mode.Mode{mode.Share}}
	a10CG = view.Model{Name: "NVIDIA-A10", Modes: []mode.Mode{mode.CGPU}}
	like  = view.Model{Name: "nvidia-a10", Modes: []mode.Mode{mode.CGPU}}
	newer = view.Model{Name: "NVIDIA-A10", Modes: []mode.Mode{mode.Share, "auction"}}
)

func TestPlan(t *testing.T) {
	others := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
	foreign := changed(made(t, a10), func(c *resourceapi.DeviceClass) { c.Labels = nil })
	type want struct {
		create, update, surplus []string
		told                    []string
	}
	for name, test := range map[string]struct {
		models   []view.Model
		existing []*resourceapi.DeviceClass
		want     want
	}{
		"nothing":         {nil, nil, want{}},
		"others' classes": {nil, []*resourceapi.DeviceClass{others}, want{}},
		"the marker of the driver for CPUs": {nil, []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{
			Name: legacy.ClassCPUsMarker, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ControllerName}}}},
			want{}},
		"a model comes": {[]view.Model{a10}, []*resourceapi.DeviceClass{others},
			want{create: []string{"nvidia-a10.gpu.aliyun.com of NVIDIA-A10", "share.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"}}},
		"all is there":             {[]view.Model{a10}, made(t, a10), want{}},
		"a mode that is not known": {[]view.Model{newer}, made(t, a10), want{}},
		"a model goes": {nil, made(t, a10),
			want{surplus: []string{"nvidia-a10.gpu.aliyun.com of NVIDIA-A10", "share.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"}}},
		"its node changes its mode": {[]view.Model{a10CG}, made(t, a10),
			want{create: []string{"cgpu.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"},
				surplus: []string{"share.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"}}},
		"somebody changed a class": {[]view.Model{a10},
			changed(made(t, a10), func(c *resourceapi.DeviceClass) { c.Spec.Selectors = nil }),
			want{update: []string{"nvidia-a10.gpu.aliyun.com of NVIDIA-A10"}}},
		"somebody labelled a class": {[]view.Model{a10},
			changed(made(t, a10), func(c *resourceapi.DeviceClass) { c.Labels["team"] = "a" }), want{}},
		"the same by GitOps": {[]view.Model{a10}, foreign, want{}},
		"GitOps' GPUs go":    {nil, foreign[:1], want{}},
		"another class of the name": {[]view.Model{a10},
			changed(foreign, func(c *resourceapi.DeviceClass) { c.Spec.Selectors = nil }),
			want{told: []string{"nvidia-a10.gpu.aliyun.com GPUDeviceClassNotOurs"}}},
		"two models of one name": {[]view.Model{a10, like}, nil,
			want{create: []string{"nvidia-a10.gpu.aliyun.com of NVIDIA-A10", "share.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"}}},
		"the second model of a name": {[]view.Model{a10, like}, made(t, a10),
			want{told: []string{"nvidia-a10.gpu.aliyun.com GPUModelNameTaken"}}},
		"the first model of a name comes second": {[]view.Model{a10, like}, made(t, like),
			want{told: []string{"nvidia-a10.gpu.aliyun.com GPUModelNameTaken"}}},
		"one takes the other's place": {[]view.Model{like}, made(t, a10),
			want{surplus: []string{"nvidia-a10.gpu.aliyun.com of NVIDIA-A10", "share.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"},
				told: []string{"nvidia-a10.gpu.aliyun.com GPUModelNameTaken"}}},
		"a class of the other's stays": {[]view.Model{{Name: "nvidia-a10", Modes: []mode.Mode{mode.Share}}}, made(t, a10)[1:],
			want{create: []string{"nvidia-a10.gpu.aliyun.com of nvidia-a10"},
				surplus: []string{"share.nvidia-a10.gpu.aliyun.com of NVIDIA-A10"},
				told:    []string{"share.nvidia-a10.gpu.aliyun.com GPUModelNameTaken"}}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newPlan(test.models, nil, test.existing)
			expect.NoError(t, err)
			got := want{create: names(p.create), update: names(p.update), surplus: names(p.surplus)}
			for _, f := range p.told {
				got.told = append(got.told, f.class.Name+" "+f.reason)
			}
			for _, list := range []struct {
				what      string
				want, got []string
			}{
				{"create", test.want.create, got.create}, {"update", test.want.update, got.update},
				{"surplus", test.want.surplus, got.surplus}, {"told", test.want.told, got.told},
			} {
				expect.Equal(t, append([]string{}, list.want...), append([]string{}, list.got...), "%s", list.what)
			}
		})
	}
}

func TestUpdateKeepsWhatOthersAdded(t *testing.T) {
	existing := changed(made(t, a10), func(c *resourceapi.DeviceClass) {
		c.Labels["team"], c.UID, c.Spec.Selectors = "a", "u", nil
	})
	p, err := newPlan([]view.Model{a10}, nil, existing)
	expect.NoError(t, err)
	want := made(t, a10)[0]
	want.Labels["team"], want.UID = "a", "u"
	expect.Equal(t, []*resourceapi.DeviceClass{want}, p.update, "updated")
}

// What a node calls a profile is for that node to say. Two that have one class's name take turns at nothing.
func TestProfilesOfOneName(t *testing.T) {
	made := func(profile string) *resourceapi.DeviceClass {
		p, err := newPlan(nil, []string{profile}, nil)
		expect.NoError(t, err)
		return p.create[0]
	}
	changed := made("1g.10gb.me")
	changed.Spec.Selectors = nil
	both := []string{"1g.10gb", "1g.10gb+me", "1g.10gb.me"}
	for name, test := range map[string]struct {
		stored, want *resourceapi.DeviceClass
		writes       int
	}{
		"none is stored":       {nil, made("1g.10gb+me"), 1},
		"the first is stored":  {made("1g.10gb+me"), made("1g.10gb+me"), 0},
		"the second is stored": {made("1g.10gb.me"), made("1g.10gb.me"), 0},
		"neither is stored":    {changed, made("1g.10gb+me"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			existing := []*resourceapi.DeviceClass{made("1g.10gb")}
			if test.stored != nil {
				existing = append(existing, test.stored)
			}
			p, err := newPlan(nil, both, existing)
			expect.NoError(t, err)
			written := append(p.create, p.update...)
			if len(written) != test.writes || len(p.surplus) > 0 || len(p.told) > 0 {
				t.Fatalf("creates %v, updates %v, surplus %v, says %v", names(p.create), names(p.update), names(p.surplus), p.told)
			}
			for _, class := range written {
				expect.Equal(t, test.want.Spec, class.Spec, "the class")
				existing = []*resourceapi.DeviceClass{existing[0], class}
			}
			again, err := newPlan(nil, both, existing)
			if err != nil || len(again.create)+len(again.update) > 0 {
				t.Errorf("%v; then creates %v, updates %v", err, names(again.create), names(again.update))
			}
		})
	}
}

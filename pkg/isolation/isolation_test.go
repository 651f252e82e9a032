package isolation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func share(index int, units int64) claim.Grant {
	return claim.Grant{Request: "r", Mode: mode.Share, Units: units, Card: claim.Card{Index: index, MemoryMiB: 16130}, Config: v1alpha1.Default()}
}

func TestEnv(t *testing.T) {
	plain := share(0, 3)
	withoutLegacy := share(0, 3)
	withoutLegacy.Config.Env = ptr.To(v1alpha1.EnvNone)
	lifted := share(0, 3)
	lifted.Config.DisableIsolation = ptr.To(true)
	admin := share(0, 0)
	admin.Admin = true
	for name, tc := range map[string]struct {
		request Request
		want    []string
	}{
		"whole card": {Request{Grants: []claim.Grant{{Mode: mode.Exclusive}}}, []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		"share": {Request{Grants: []claim.Grant{plain}, ClaimUnits: 8}, []string{"NVIDIA_VISIBLE_DEVICES=void",
			"ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=0", "ALIYUN_COM_GPU_MEM_POD=8"}},
		"two cards": {Request{Grants: []claim.Grant{share(1, 2), share(3, 2)}, ClaimUnits: 4}, []string{"NVIDIA_VISIBLE_DEVICES=void",
			"ALIYUN_COM_GPU_MEM_CONTAINER=2", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=1,3", "ALIYUN_COM_GPU_MEM_POD=4"}},
		"env None": {Request{Grants: []claim.Grant{withoutLegacy}, ClaimUnits: 3}, []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		"isolation lifted": {Request{Grants: []claim.Grant{lifted}, ClaimUnits: 3}, []string{"NVIDIA_VISIBLE_DEVICES=void", "CGPU_DISABLE=true",
			"ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=0", "ALIYUN_COM_GPU_MEM_POD=3"}},
		"admin": {Request{Grants: []claim.Grant{admin}}, []string{"NVIDIA_VISIBLE_DEVICES=void"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Env(tc.request)); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestForRefusesModesThatAreNotServed(t *testing.T) {
	for _, m := range []mode.Mode{mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology, mode.Dynamic} {
		if b, err := For(m); err == nil || !strings.Contains(err.Error(), string(m)) {
			t.Errorf("%s is served by %v, %v: less isolation than asked for", m, b, err)
		}
	}
	for m, want := range map[mode.Mode]string{mode.Exclusive: "whole-card", mode.Share: "none"} {
		b, err := For(m)
		if err != nil || b.Name() != want {
			t.Errorf("%s: %v, %v; want %s", m, b, err, want)
		}
	}
}

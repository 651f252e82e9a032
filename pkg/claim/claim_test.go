package claim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func cards(index int) (gpu.GPU, bool) {
	if index > 1 {
		return gpu.GPU{}, false
	}
	return gpu.GPU{Index: index, UUID: []string{"GPU-a", "GPU-b"}[index], Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, true
}

func allocated(results []resourceapi.DeviceRequestAllocationResult, configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs},
	}}}
}

func share(request, device, memory string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: device, ShareID: ptr.To(types.UID("share-1")),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory), "cores": resource.MustParse("0"), "slots": resource.MustParse("1"),
		},
	}
}

func whole(request, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: device}
}

func opaque(source resourceapi.AllocationConfigSource, driver, body string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	raw := `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig"` + body + `}`
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}},
	}}
}

const (
	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim
)

func TestGrants(t *testing.T) {
	other := whole("nic", "eth0")
	other.Driver = "nic.example.com"
	c := allocated([]resourceapi.DeviceRequestAllocationResult{other, share("a", "gpu-0-share", "3Gi"), whole("b/first", "gpu-1")})
	got, err := Grants(c, "n1/gpu", cards)
	if err != nil {
		t.Fatal(err)
	}
	want := []Grant{
		{Request: "a", Pool: "n1/gpu", Device: "gpu-0-share", ShareID: "share-1", Mode: mode.Share, Units: 3, Slots: 1,
			Card: Card{Index: 0, UUID: "GPU-a", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, Config: v1alpha1.Default()},
		{Request: "b/first", Pool: "n1/gpu", Device: "gpu-1", Mode: mode.Exclusive,
			Card: Card{Index: 1, UUID: "GPU-b", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, Config: v1alpha1.Default()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
}

// A linked set is one result and a grant for each of its cards.
func TestGrantsOfASet(t *testing.T) {
	c := allocated([]resourceapi.DeviceRequestAllocationResult{whole("a", "gpus-0-1"), whole("b", "gpu-1-topology")})
	got, err := Grants(c, "n1/gpu", cards)
	if err != nil {
		t.Fatal(err)
	}
	var uuids []string
	for _, g := range got {
		if g.Mode != mode.Topology {
			t.Errorf("%s is in mode %s", g.Device, g.Mode)
		}
		uuids = append(uuids, g.Card.UUID)
	}
	if diff := cmp.Diff([]string{"GPU-a", "GPU-b", "GPU-b"}, uuids); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
	if results := Results(got); len(results) != 2 || len(results[0]) != 2 || len(results[1]) != 1 {
		t.Errorf("grouped by result: %+v", results)
	}
	// It takes each of its cards.
	err = CheckFits(nil, nothingUnclaimed, noLimit, Holder{Namespace: "team", Name: "greedy", Grants: got})
	if err == nil || !strings.Contains(err.Error(), "card 1 (GPU-b): already held as a whole by claim team/greedy") {
		t.Errorf("a card that is granted twice: %v", err)
	}
}

func TestGrantsConfigPrecedence(t *testing.T) {
	c := allocated([]resourceapi.DeviceRequestAllocationResult{share("a", "gpu-0-share", "3Gi"), share("b", "gpu-0-share", "3Gi")},
		opaque(fromClass, "gpu.aliyun.com", `,"disableIsolation":true,"env":"None"`),
		opaque(fromClaim, "gpu.aliyun.com", `,"env":"Legacy"`, "b"),
		opaque(fromClaim, "nic.example.com", `,"mtu":9000`))
	got, err := Grants(c, "n1/gpu", cards)
	if err != nil {
		t.Fatal(err)
	}
	if a := got[0].Config; !a.IsolationDisabled() || a.LegacyEnv() {
		t.Errorf("request a does not follow its class: %+v", a)
	}
	if b := got[1].Config; !b.IsolationDisabled() || !b.LegacyEnv() {
		t.Errorf("request b: the claim's env does not win over the class's, or the class's disableIsolation is lost: %+v", b)
	}
}

func TestGrantsRejects(t *testing.T) {
	noShareID := share("a", "gpu-0-share", "3Gi")
	noShareID.ShareID = nil
	noSlot := share("a", "gpu-0-share", "3Gi")
	noSlot.ConsumedCapacity["slots"] = resource.MustParse("0")
	otherNode := whole("a", "gpu-0")
	otherNode.Pool = "n2/gpu"
	foreign := whole("a", "eth0")
	foreign.Driver = "nic.example.com"
	one := func(r resourceapi.DeviceRequestAllocationResult) []resourceapi.DeviceRequestAllocationResult {
		return []resourceapi.DeviceRequestAllocationResult{r}
	}
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"not allocated":        {&resourceapi.ResourceClaim{}, "not allocated"},
		"nothing of ours":      {allocated(one(foreign)), "no device of driver gpu.aliyun.com"},
		"pool of another node": {allocated(one(otherNode)), `pool "n2/gpu"`},
		"unknown device":       {allocated(one(whole("a", "gpu-x"))), `"gpu-x"`},
		"card gone":            {allocated(one(whole("a", "gpu-7"))), "card 7 is no longer usable"},
		"one of a set gone":    {allocated(one(whole("a", "gpus-1-7"))), `device "gpus-1-7": card 7 is no longer usable`},
		"no share ID":          {allocated(one(noShareID)), "DRAConsumableCapacity"},
		"no memory":            {allocated(one(share("a", "gpu-0-share", "0"))), "at least 1Gi"},
		"fraction of a Gi":     {allocated(one(share("a", "gpu-0-share", "1536Mi"))), "whole number of Gi"},
		"negative memory":      {allocated(one(share("a", "gpu-0-share", "-1Gi"))), "at least 1Gi"},
		"no slot":              {allocated(one(noSlot)), "slots"},
		"unknown field": {allocated(one(whole("a", "gpu-0")), opaque(fromClaim, "gpu.aliyun.com", `,"memoryLimit":3`)),
			`request "a", device "gpu-0": opaque config from the claim: decode GpuConfig: unknown field "memoryLimit"`},
		"unknown field in the class": {allocated(one(whole("a", "gpu-0")), opaque(fromClass, "gpu.aliyun.com", `,"x":3`)), "opaque config from the DeviceClass"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Grants(tc.claim, "n1/gpu", cards)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}

func TestAdminGrantMayTakeNothing(t *testing.T) {
	r := share("monitor", "gpu-0-share", "0")
	r.ConsumedCapacity["slots"] = resource.MustParse("0")
	r.AdminAccess = ptr.To(true)
	got, err := Grants(allocated([]resourceapi.DeviceRequestAllocationResult{r}), "n1/gpu", cards)
	if err != nil || !got[0].Admin || got[0].Units != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// noLimit: any number of shares of a card can be kept apart.
func noLimit(Grant) (int64, error) { return 0, nil }

// A card can have memory left for more shares than can be kept apart.
func TestCheckFitsCountsShares(t *testing.T) {
	card := Card{Index: 0, UUID: "GPU-a", MemoryMiB: 81920}
	share := func(slots int64) Grant {
		return Grant{Request: "r", Mode: mode.MPS, Isolation: "mps", Card: card, Units: 1, Slots: slots}
	}
	for name, tc := range map[string]struct {
		held      int
		slots     int64 // of each
		unclaimed int64
		wanted    []Grant
		want      string
	}{
		"the last one":                 {47, 1, 0, []Grant{share(1)}, ""},
		"one too many":                 {48, 1, 0, []Grant{share(1)}, "1 of its shares asked for, but 48 of the 48 that mps keeps apart are already granted"},
		"records of earlier versions":  {48, 0, 0, []Grant{share(1)}, "48 of the 48"},
		"that count as several":        {12, 4, 0, []Grant{share(1)}, "48 of the 48"},
		"asked for several":            {46, 1, 0, []Grant{share(3)}, "3 of its shares asked for, but 46"},
		"two requests":                 {47, 1, 0, []Grant{share(1), share(1)}, "48 of the 48"},
		"beside pods without a claim":  {40, 1, 8, []Grant{share(1)}, "48 of the 48 that mps keeps apart are already granted, of them"},
		"for an administrator, always": {48, 1, 0, []Grant{{Request: "r", Mode: mode.MPS, Card: card, Admin: true}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var others []Holder
			for range tc.held {
				others = append(others, Holder{Namespace: "team", Name: "other", Grants: []Grant{share(tc.slots)}})
			}
			unclaimed := func(string) deviceplugin.Card {
				c := deviceplugin.Card{Amount: deviceplugin.Amount{Shares: tc.unclaimed}}
				if tc.unclaimed > 0 {
					c.Pods = []string{"old/a"}
				}
				return c
			}
			most := func(Grant) (int64, error) { return 48, nil }
			err := CheckFits(others, unclaimed, most, Holder{Namespace: "team", Name: "second", Grants: tc.wanted})
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}

// nothingUnclaimed: no pod holds a card without a claim.
func nothingUnclaimed(string) deviceplugin.Card { return deviceplugin.Card{} }

func TestCheckFitsBesidePodsWithoutClaim(t *testing.T) {
	card := Card{Index: 0, UUID: "GPU-a", MemoryMiB: 16130}
	share := func(m mode.Mode, units, cores int64) Grant {
		return Grant{Request: "r", Mode: m, Card: card, Units: units, CoresPercent: cores}
	}
	whole := Grant{Request: "r", Mode: mode.Exclusive, Card: card}
	memory := deviceplugin.Card{Amount: deviceplugin.Amount{Units: 6, Shares: 1}, MemoryOnly: true, Pods: []string{"old/a", "old/b"}}
	compute := deviceplugin.Card{Amount: deviceplugin.Amount{Units: 6, Cores: 60, Shares: 1}, Pods: []string{"old/a"}}
	all := deviceplugin.Card{Amount: deviceplugin.Amount{Shares: 1, Whole: true}, Pods: []string{"old/a"}}
	for name, tc := range map[string]struct {
		unclaimed deviceplugin.Card
		held      int64
		wanted    Grant
		want      string
	}{
		"the rest":            {memory, 5, share(mode.Share, 4, 0), ""},
		"more than the rest":  {memory, 5, share(mode.Share, 5, 0), "5 GiB asked for, but 11 of 15 GiB are already granted, of them 6 GiB and 0 % without a claim to pods that a device plugin started: 2 of other namespaces"},
		"the whole card":      {memory, 0, whole, "hold a part of it in another way without a claim: 2 of other namespaces"},
		"compute beside it":   {memory, 0, share(mode.CoreMem, 1, 5), "without a claim: 2 of other namespaces"},
		"the rest of compute": {compute, 0, share(mode.CoreMem, 9, 40), ""},
		"more of compute":     {compute, 0, share(mode.CoreMem, 9, 45), "60 % are already granted, of them 6 GiB and 60 % without a claim"},
		"memory beside it":    {compute, 0, share(mode.Share, 1, 0), "without a claim: 1 of other namespaces"},
		"beside a whole card": {all, 0, share(mode.Share, 1, 0), "hold all of it without a claim: 1 of other namespaces"},
		"access for an admin": {all, 0, Grant{Request: "r", Mode: mode.Exclusive, Card: card, Admin: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var others []Holder
			if tc.held > 0 {
				others = []Holder{{Namespace: "team", Name: "first", Grants: []Grant{share(mode.Share, tc.held, 0)}}}
			}
			err := CheckFits(others, func(uuid string) deviceplugin.Card {
				if uuid != card.UUID {
					return deviceplugin.Card{}
				}
				return tc.unclaimed
			}, noLimit, Holder{Namespace: "team", Name: "second", Grants: []Grant{tc.wanted}})
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}

func TestCheckFits(t *testing.T) {
	card := Card{Index: 0, UUID: "GPU-a", MemoryMiB: 16130}
	shareOf := func(units, cores int64) Grant {
		return Grant{Request: "r", Mode: mode.Share, Card: card, Units: units, CoresPercent: cores}
	}
	wholeCard := Grant{Request: "r", Mode: mode.Exclusive, Card: card}
	admin := Grant{Request: "r", Mode: mode.Exclusive, Card: card, Admin: true}
	elsewhere := Grant{Request: "r", Mode: mode.Exclusive, Card: Card{Index: 1, UUID: "GPU-b", MemoryMiB: 16130}}
	holders := func(grants ...Grant) []Holder {
		var hs []Holder
		for _, g := range grants {
			hs = append(hs, Holder{Namespace: "team", Name: "first", Grants: []Grant{g}})
		}
		return hs
	}
	for name, tc := range map[string]struct {
		others []Holder
		wanted []Grant
		want   string
	}{
		"free card":                {nil, []Grant{wholeCard}, ""},
		"other card taken":         {holders(elsewhere), []Grant{wholeCard}, ""},
		"whole beside whole":       {holders(wholeCard), []Grant{wholeCard}, "held as a whole by claim team/first"},
		"share beside whole":       {holders(wholeCard), []Grant{shareOf(1, 0)}, "held as a whole by claim team/first"},
		"whole beside share":       {holders(shareOf(1, 0)), []Grant{wholeCard}, "claim team/first holds a share"},
		"share of another mode":    {holders(shareOf(1, 0)), []Grant{{Request: "r", Mode: mode.MPS, Card: card, Units: 1}}, "holds a share of it in mode share"},
		"fills to the last unit":   {holders(shareOf(12, 0)), []Grant{shareOf(3, 0)}, ""},
		"one unit too many":        {holders(shareOf(12, 0), shareOf(3, 0)), []Grant{shareOf(1, 0)}, "15 of 15 GiB are already granted"},
		"too much within a claim":  {nil, []Grant{shareOf(8, 0), shareOf(8, 0)}, "8 of 15 GiB"},
		"twice the card in claim":  {nil, []Grant{wholeCard, wholeCard}, "held as a whole"},
		"cores":                    {holders(shareOf(1, 75)), []Grant{shareOf(1, 30)}, "75 % are already granted"},
		"admin beside whole":       {holders(wholeCard), []Grant{admin}, ""},
		"whole beside admin":       {holders(admin), []Grant{wholeCard}, ""},
		"admin is not charged":     {nil, []Grant{admin, wholeCard}, ""},
		"more than the whole card": {nil, []Grant{shareOf(16, 0)}, "16 GiB asked for, but 0 of 15"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckFits(tc.others, nothingUnclaimed, noLimit, Holder{Namespace: "team", Name: "second", Grants: tc.wanted})
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}

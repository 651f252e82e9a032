// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// ownClass is an administrator's DeviceClass.
func ownClass(name, selector string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}}}
}

// costly is a server with the classes of administrators, and a namespace that is allowed costly claims.
func costly(t *testing.T) *server {
	return shared("costly", func() *server {
		return newServerWith(t, []runtime.Object{
			ownClass("any.example.com", `device.driver == "gpu.aliyun.com"`),
			ownClass("team-share",
				`device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].?mode.orValue("") == "share"`),
			ownClass("nic.example.com", `device.driver == "nic.example.com"`),
			namespace("trusted", "gpu.aliyun.com/costly-claims", "allowed"),
		})
	})
}

type requestOption func(*resourceapi.ExactDeviceRequest)

func memory(amount string) requestOption {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(amount)}}
	}
}

func count(n int64) requestOption { return func(r *resourceapi.ExactDeviceRequest) { r.Count = n } }

func all() requestOption {
	return func(r *resourceapi.ExactDeviceRequest) { r.AllocationMode = resourceapi.DeviceAllocationModeAll }
}

func where(expressions ...string) requestOption {
	return func(r *resourceapi.ExactDeviceRequest) {
		for _, e := range expressions {
			r.Selectors = append(r.Selectors,
				resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
		}
	}
}

// of is n requests for a class of this driver, or for one with a dot in its name or team-share.
func of(n int, class string, options ...requestOption) []resourceapi.DeviceRequest {
	var requests []resourceapi.DeviceRequest
	for i := range n {
		r := exactly(fmt.Sprintf("r%d-%s", i, strings.ReplaceAll(class, ".", "-")), class)
		if class == "gpu" {
			r.Exactly.DeviceClassName = "gpu.aliyun.com"
		}
		if strings.HasSuffix(class, ".com") || class == "team-share" {
			r.Exactly.DeviceClassName = class
		}
		for _, o := range options {
			o(r.Exactly)
		}
		requests = append(requests, r)
	}
	return requests
}

func claimFor(parts ...[]resourceapi.DeviceRequest) resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	for _, part := range parts {
		for _, r := range part {
			r.Name = fmt.Sprintf("r%d", len(claim.Requests))
			claim.Requests = append(claim.Requests, r)
		}
	}
	return claim
}

// together ties all requests of a claim to one GPU.
func together(claim resourceapi.DeviceClaim) resourceapi.DeviceClaim {
	claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{
		MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid"))})
	return claim
}

// onGPUs are requests for shares of as many GPUs, each for so many containers, as the driver writes them for pods in
// the manner of ACK: each GPU's follow each other, and GPUs are taken in the order of their indices.
func onGPUs(gpus, containers int, class string) resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	var first []string
	for g := range gpus {
		var same []string
		for range containers {
			r := of(1, class, memory("1Gi"))
			if after := gpus - 1 - g; after > 0 && len(same) == 0 {
				where(fmt.Sprintf(`device.attributes["gpu.aliyun.com"].?index.orValue(-1) >= %d`, after))(r[0].Exactly)
			}
			r[0].Name = fmt.Sprintf("r%d", len(claim.Requests))
			claim.Requests, same = append(claim.Requests, r...), append(same, r[0].Name)
		}
		claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{Requests: same,
			MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid"))})
		first = append(first, same[0])
	}
	claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{Requests: first,
		DistinctAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid"))})
	return claim
}

// inOrder are requests for whole GPUs, in the order of their indices.
func inOrder(gpus int) resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	for after := gpus - 1; after >= 0; after-- {
		r := of(1, "exclusive")
		if after > 0 {
			where(fmt.Sprintf(`device.attributes["gpu.aliyun.com"].index >= %d`, after))(r[0].Exactly)
		}
		r[0].Name = fmt.Sprintf("r%d", len(claim.Requests))
		claim.Requests = append(claim.Requests, r...)
	}
	return claim
}

// butFor is the claim with a change.
func butFor(claim resourceapi.DeviceClaim, change func(*resourceapi.DeviceClaim)) resourceapi.DeviceClaim {
	change(&claim)
	return claim
}

func linkedOrSingle(gpus int64) []resourceapi.DeviceRequest {
	r := firstOf("gpus", fmt.Sprintf("linked-%d.topology", gpus), "single.topology")
	r.FirstAvailable[1].Count = gpus
	return []resourceapi.DeviceRequest{r}
}

// Nobody who means well is refused.
func TestClaimsThatAreSearchedQuickly(t *testing.T) {
	s := costly(t)
	for name, claim := range map[string]resourceapi.DeviceClaim{
		"one share":               claimFor(of(1, "share", memory("3Gi"))),
		"four shares of one size": claimFor(of(4, "share", memory("2Gi"))),
		"four shares, largest first": claimFor(of(1, "mps", memory("8Gi")), of(2, "mps", memory("4Gi")), of(1,
			"mps", memory("1Gi"))),
		"two shares of any size":              claimFor(of(1, "cgpu", memory("1Gi")), of(1, "cgpu", memory("4Gi"))),
		"a whole GPU and a share":             claimFor(of(1, "exclusive"), of(1, "share", memory("1Gi"))),
		"seven whole GPUs, each in a request": claimFor(of(7, "exclusive")),
		"eight whole GPUs":                    claimFor(of(1, "exclusive", count(8))),
		"eight of a model":                    claimFor(of(1, "exclusive.nvidia-a10", count(8))),
		"eight of any mode":                   claimFor(of(1, "gpu", count(8))),
		"all GPUs of a node":                  claimFor(of(1, "exclusive", all())),
		"thirteen":                            claimFor(of(1, "share", count(13), memory("1Gi"))),
		"sixteen on a topology node":          claimFor(of(1, "single.topology", count(16))),
		"sixteen, in two requests": claimFor(of(1, "exclusive", count(8),
			where(`device.attributes["gpu.aliyun.com"].index >= 8`)), of(1, "exclusive", count(8))),
		"a share of each of eight GPUs": claimFor(of(1, "share", count(8), memory("1Gi"))),
		"sixteen shares of one GPU":     together(claimFor(of(16, "share", memory("1Gi")))),
		"twenty shares of a GPU by its index": claimFor(of(20, "share", memory("1Gi"),
			where(`device.attributes["gpu.aliyun.com"].index == 2`))),
		"shares of four GPUs by their UUIDs": claimFor(
			of(1, "share", memory("4Gi"), where(`device.attributes["gpu.aliyun.com"].uuid == "GPU-1"`)),
			of(1, "share", memory("1Gi"), where(`device.attributes['gpu.aliyun.com'].?uuid.orValue('') == 'GPU-2'`)),
			of(1, "share", memory("2Gi"), where(`device.attributes["gpu.aliyun.com"].?index.orValue(-1) == 2`)),
			of(1, "share", memory("3Gi"), where("device.attributes[\"gpu.nvidia.com\"].uuid == \"GPU-4\"\n"))),
		"five GPUs for a container":       onGPUs(5, 1, "share"),
		"four GPUs for four containers":   onGPUs(4, 4, "share"),
		"two GPUs for sixteen containers": onGPUs(2, 16, "share"),
		"eight whole GPUs in an order":    inOrder(8),
		"a linked set, or as many":        claimFor(linkedOrSingle(8)),
		"two linked sets, or as many":     claimFor(linkedOrSingle(2), linkedOrSingle(2)),
		"linked sets":                     claimFor(of(1, "linked-2.topology", count(4))),
		"MIG instances":                   claimFor(of(1, "1g.10gb.mig", count(4))),
		"three MIG instances":             claimFor(of(3, "1g.10gb.mig")),
		"a share of one's own class":      claimFor(of(4, "team-share", memory("1Gi"))),
		"one of any":                      claimFor(of(1, "any.example.com")),
		"another driver's":                claimFor(of(16, "nic.example.com", count(2))),
		"another driver's, with GPUs":     claimFor(of(8, "nic.example.com"), of(1, "exclusive", count(8))),
		"quota": claimFor([]resourceapi.DeviceRequest{
			firstOf("a", "share", "gib.quota", "percent.quota"), firstOf("b", "share", "gib.quota", "percent.quota"),
			firstOf("c", "share", "gib.quota", "percent.quota"), firstOf("d", "share", "gib.quota",
				"percent.quota")}),
		"selectors": claimFor(of(1, "share",
			where(`device.attributes["gpu.aliyun.com"].?model.orValue("") in ["NVIDIA A10 (24GB)", "x"]`,
				`device.attributes["gpu.aliyun.com"].?productName.orValue("").startsWith("NVIDIA")`,
				`device.attributes["gpu.aliyun.com"].?productName.orValue("").matches("^NVIDIA (A10|A100|H100|H800|L40S)( |$)")`,
				`device.capacity["gpu.aliyun.com"].memory.compareTo(quantity("8Gi")) >= 0`))),
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(team, claim))
		})
	}
}

// What takes the scheduler long, of each kind that was found (docs/internals/search-cost.md), is refused in words
// that say what to write instead.
func TestClaimsThatAreSearchedForLong(t *testing.T) {
	s := costly(t)
	never := where("false")
	two := []resourceapi.DeviceRequest{firstOf("a", "share", "share")}
	four := []resourceapi.DeviceRequest{firstOf("a", "share", "share", "share", "share")}
	six := []resourceapi.DeviceRequest{firstOf("a", "share", "share", "share", "share", "share", "share")}
	alternatives := firstOf("a", "share", "cgpu", "mps", "share", "share", "share", "share", "share")
	anyOf := func(is string) resourceapi.DeviceClaim {
		attribute := "uuid"
		if strings.HasSuffix(is, "index") {
			attribute = "index"
		}
		return claimFor(of(4, "share", where(`device.attributes["gpu.aliyun.com"].`+attribute+" == "+is)),
			of(1, "share", never))
	}
	for name, tc := range map[string]struct {
		claim resourceapi.DeviceClaim
		says  string
	}{
		"fifteen shares, and one that no GPU has": {claimFor(of(15, "share", memory("1Gi")), of(1, "share",
			memory("500Gi"))), "the largest first"},
		"three shares, and one that no GPU has": {claimFor(of(3, "share", memory("1Gi")), of(1, "share",
			memory("500Gi"))), "the largest first"},
		"three shares, and one nowhere": {claimFor(of(3, "share", memory("1Gi")), of(1, "share",
			memory("1Gi"), never)), "costly-claims=allowed"},
		"four whole GPUs, each in a request": {claimFor(of(3, "exclusive"), of(1, "exclusive", never)),
			"Put a request with a count last"},
		"eight GPUs, and a share": {claimFor(of(1, "gpu", count(8)), of(1, "share")),
			"Put a request with a count last"},
		"four shares, and another driver's": {claimFor(of(4, "share"), of(1, "nic.example.com")), "independently"},
		"a UUID that each GPU has":          {anyOf(`device.attributes["gpu.aliyun.com"].uuid`), "independently"},
		"an index that each has":            {anyOf(`device.attributes["gpu.aliyun.com"].index`), "independently"},
		"a comparison that is true":         {anyOf(`"GPU-1" in [true, false]`), "independently"},
		"every other UUID":                  {anyOf(`"GPU-1" == false`), "independently"},
		"an index that none has": {claimFor(of(4, "share", where(`device.attributes["no.such"].?index.orValue(7) == 7`)),
			of(1, "share", never)), "independently"},
		"a UUID that none has": {claimFor(of(4, "share", where(`device.attributes["no.such"].?uuid.orValue("x") == "x"`)),
			of(1, "share", never)), "independently"},
		"no UUID, which none has": {claimFor(of(4, "share", where(`device.attributes["no.such"].?uuid.orValue("") == ""`)),
			of(1, "share", never)), "independently"},
		"sixteen GPUs":     {claimFor(of(1, "exclusive", count(16))), "allocationMode: All"},
		"seventeen shares": {claimFor(of(1, "share", count(17))), "It may ask for 13"},
		"seven instances":  {claimFor(of(1, "1g.10gb.mig", count(7))), "It may ask for 4"},
		"alternatives": {claimFor([]resourceapi.DeviceRequest{alternatives, alternatives}, of(1, "share")),
			"independently"},
		"alternatives on one GPU": {together(claimFor([]resourceapi.DeviceRequest{alternatives,
			alternatives, alternatives, alternatives, alternatives})), "it may have 32"},
		"alternatives among many requests on one GPU": {together(claimFor(of(3, "share"), four, of(3, "share"), four,
			of(3, "share"), four, of(3, "share"))), "independently"},
		"alternatives before many requests on one GPU": {together(claimFor(six, two, of(4, "share"), of(1, "exclusive"))),
			"independently"},
		"seventeen requests on one GPU": {together(claimFor(of(17, "share"))), "sixteen of one mode on one GPU"},
		"a request that fits nowhere on the GPU of another": {butFor(onGPUs(3, 2, "share"), func(c *resourceapi.DeviceClaim) {
			memory("500Gi")(c.Requests[5].Exactly)
		}), "independently"},
		"one more at the end of several GPUs": {butFor(onGPUs(4, 1, "share"), func(c *resourceapi.DeviceClaim) {
			c.Requests = append(c.Requests, of(1, "share", memory("500Gi"))...)
			c.Requests[4].Name = "r4"
			c.Constraints[3].Requests = append(c.Constraints[3].Requests, "r4")
		}), "independently"},
		"several GPUs, of which one has all requests": {butFor(onGPUs(4, 2, "share"), func(c *resourceapi.DeviceClaim) {
			for i := range 4 {
				c.Constraints[i].Requests = []string{"r0", c.Constraints[i].Requests[1]}
			}
		}), "independently"},
		"different GPUs that have to be the same": {butFor(onGPUs(4, 2, "share"), func(c *resourceapi.DeviceClaim) {
			c.Constraints[4].Requests = []string{"r6", "r7"}
		}), "independently"},
		"GPUs in an order, the last with an index that no GPU has": {butFor(inOrder(8), func(c *resourceapi.DeviceClaim) {
			where(`device.attributes["gpu.aliyun.com"].index >= 99`)(c.Requests[7].Exactly)
		}), "independently"},
		"GPUs in an order, the last one nowhere": {butFor(inOrder(8), func(c *resourceapi.DeviceClaim) {
			where(`"index".size() >= 99`)(c.Requests[7].Exactly)
		}), "independently"},
		"GPUs in an order, one of them nowhere": {butFor(inOrder(8), func(c *resourceapi.DeviceClaim) {
			where(`device.attributes["gpu.aliyun.com"].index >= 99`)(c.Requests[6].Exactly)
		}), "independently"},
		"five GPUs for two containers": {onGPUs(5, 2, "share"), "independently"},
		"six GPUs for a container":     {onGPUs(6, 1, "share"), "independently"},
		"lists that are compared":      {claimFor(of(1, "share", where(`!sets.contains([1, 2, 3], [-1])`))), "calls sets()"},
		"an administrator's class": {claimFor(of(2, "any.example.com"), of(1, "any.example.com", never)),
			"independently"},
		"topology of any size": {claimFor(of(2, "topology"), of(1, "topology", never)), "independently"},
		"alternatives of all requests": {together(claimFor([]resourceapi.DeviceRequest{alternatives,
			alternatives, alternatives, alternatives}, of(1, "share"))), "it may have 32"},
		"all of many requests":    {claimFor(of(9, "share", all())), "8 of them with allocationMode: All"},
		"a loop":                  {claimFor(of(1, "share", where(`lists.range(9).all(x, x >= 0)`))), "calls range()"},
		"a loop, spaced":          {claimFor(of(1, "share", where("[1, 2].all\n\t(x, x > 0)"))), "loops"},
		"a loop behind a comment": {claimFor(of(1, "share", where("[1].all//\n(x, x > 0)"))), "comments"},
		"a loop in a string that is none": {claimFor(of(1, "share",
			where(`"\"" + [1].map(x, "a")[0] + "\"" != ""`))), "backslashes"},
		"doubling": {claimFor(of(1, "share", where(`optional.of("a").optMap(x, x + x).orValue("") != ""`))), "calls of()"},
		"many selectors": {claimFor(of(1, "share", where("1 == 1", "2 == 2", "3 == 3",
			"4 == 4", "5 == 5"))), "4 in a request"},
		"a regular expression that is written out": {claimFor(of(1, "share",
			where(`device.driver.matches("((.*)*){107}z")`))), "no repetition such as {2}"},
		"a long regular expression": {claimFor(of(1, "share",
			where(`"`+strings.Repeat("a", 60)+`".matches("`+strings.Repeat("a*", 30)+`")`))), "128 characters at most"},
		"a long selector of many requests": {together(claimFor(of(12, "share", where(
			`1 in [`+strings.Repeat("1,", 1400)+`1]`)))), "of 32768 characters"},
		"a long selector of MIG instances": {claimFor(of(2, "1g.10gb.mig", where(
			`1 in [`+strings.Repeat("1,", 1400)+`1]`))), "8 of 4096 for MIG instances"},
		"a regular expression that is put together": {claimFor(of(1, "share",
			where(`"a".matches("a" + device.driver)`))), "its regular expression is one text"},
		"lists that are joined": {claimFor(of(1, "share", where(strings.Repeat("[1] + ", 9)+"[1] == [1]"))),
			"may have 8 of +"},
		"changes of case": {claimFor(of(1, "share", where(`"a"`+strings.Repeat(".lowerAscii().upperAscii()", 5)+` == "a"`))),
			"may have 8 of +"},
		"a quantity with an exponent": {claimFor(of(1, "share",
			where(`quantity("1e999").compareTo(quantity("1")) > 0`))), "no exponent"},
		"a quantity below all": {claimFor(of(1, "share", where(`isQuantity("1e-999")`))), "no exponent"},
		"a quantity that is put together": {claimFor(of(1, "share",
			where(`quantity("1e9" + "99").isInteger()`))), "no exponent"},
		"four shares of a model that is called quota": {claimFor(of(3, "share.quota"), of(1, "share.quota", never)),
			"independently"},
		"regular expressions of MIG instances": {claimFor(of(1, "1g.10gb.mig", where(`device.driver.matches("a")`,
			`device.driver.matches("b")`, `device.driver.matches("c")`))), "of which 8 of 4096 for MIG instances"},
		"a loop in an administrator's class' claim": {claimFor(of(1, "any.example.com",
			where(`[1].exists(x, x == 1)`))), "calls exists()"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(team, tc.claim), tc.says)
			expect.Error(t, s.createClaim("trusted", tc.claim))
		})
	}
}

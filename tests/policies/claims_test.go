// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// createClaim is what is said of a new claim.
func (s *server) createClaim(namespace string, of resourceapi.DeviceClaim) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"}}
	claim.Spec.Devices = of
	return s.validate(somebody, claim, nil)
}

// ifRefused is the text of a refusal, as expect.Error takes it: empty where nothing is refused.
func ifRefused(refused bool, text string) string {
	if refused {
		return text
	}
	return ""
}

type requests = []resourceapi.DeviceRequest

// claimed is what a claim with these requests asks for.
func claimed(requests ...resourceapi.DeviceRequest) resourceapi.DeviceClaim {
	return resourceapi.DeviceClaim{Requests: requests}
}

// templateOf is a template of such claims, which has the claim's name.
func templateOf(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: claim.ObjectMeta}
	template.Spec.Spec = claim.Spec
	return template
}

func exactly(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name,
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class + ".gpu.aliyun.com"}}
}

func firstOf(name string, classes ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, class := range classes {
		r.FirstAvailable = append(r.FirstAvailable,
			resourceapi.DeviceSubRequest{Name: class, DeviceClassName: class + ".gpu.aliyun.com"})
	}
	return r
}

func admin(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r.Exactly.AdminAccess = ptr.To(true)
	return r
}

// With MPS a container has one GPU. Which requests are for which container is not known
// when a claim is made; what one request is for is.
func TestRequestsWithMPSAreForOneGPU(t *testing.T) {
	s := newServer(t)
	const refused = "with MPS a request is for one GPU: ask for one device"
	two := func(r resourceapi.DeviceRequest) resourceapi.DeviceRequest { return several(r, 2) }
	all := exactly("a", "mps")
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	either := firstOf("a", "share", "mps")
	either.FirstAvailable[1].Count = 2
	for name, tc := range map[string]struct {
		requests requests
		refused  string
	}{
		"one":                        {requests{exactly("a", "mps")}, ""},
		"two":                        {requests{exactly("a", "mps"), exactly("b", "mps")}, ""},
		"two of a GPU model":         {requests{exactly("a", "mps"), exactly("b", "mps.nvidia-a10")}, ""},
		"two with alternatives":      {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, ""},
		"two GPUs":                   {requests{two(exactly("a", "mps"))}, refused},
		"two GPUs of a model":        {requests{two(exactly("a", "mps.nvidia-a10"))}, refused},
		"two GPUs beside another":    {requests{exactly("a", "mps"), two(exactly("b", "mps"))}, refused},
		"two GPUs as an alternative": {requests{either}, refused},
		"all GPUs":                   {requests{all}, refused},
		"two GPUs of another mode":   {requests{two(exactly("a", "cgpu"))}, ""},
		"two GPUs, an administrator": {requests{two(admin(exactly("a", "mps")))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(team, claimed(tc.requests...)), tc.refused)
		})
	}
}

// A GpuConfig that no node would understand is refused when the claim, or its template, is written.
func TestGpuConfigsThatNoNodeUnderstands(t *testing.T) {
	s := newServer(t)
	const (
		header    = `"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig"`
		otherKind = "apiVersion is gpu.aliyun.com/v1alpha1, and kind GpuConfig"
	)
	for parameters, refused := range map[string]string{
		`{HEADER}`: "",
		`{HEADER,"disableIsolation":false,"env":"None","container":"c","timeSlice":"Long","threadPercentage":50}`: "",
		`{HEADER,"processMemory":"512Mi"}`:                        "",
		`{HEADER,"processMemory":1073741824}`:                     "",
		`{HEADER,"env":null,"timeSlice":null}`:                    "",
		`{HEADER,"isolationDisabled":true}`:                       "there is no field isolationDisabled",
		`{HEADER,"DisableIsolation":true}`:                        "there is no field DisableIsolation",
		`{HEADER,"sharing":{"strategy":"MPS"}}`:                   "there is no field sharing",
		`{HEADER,"disableIsolation":"yes"}`:                       "disableIsolation is true or false",
		`{HEADER,"env":"none"}`:                                   "env is Legacy or None",
		`{HEADER,"env":1}`:                                        "env is Legacy or None",
		`{HEADER,"container":""}`:                                 "container is the name of one",
		`{HEADER,"timeSlice":"short"}`:                            "timeSlice is Default, Short, Medium or Long",
		`{HEADER,"threadPercentage":0}`:                           "threadPercentage is a number from 1 to 100",
		`{HEADER,"threadPercentage":"50"}`:                        "threadPercentage is a number from 1 to 100",
		`{HEADER,"threadPercentage":50.5}`:                        "threadPercentage is a number from 1 to 100",
		`{HEADER,"processMemory":"1Ki"}`:                          "processMemory is 1Mi or more",
		`{HEADER,"processMemory":"much"}`:                         "processMemory is 1Mi or more",
		`{HEADER,"processMemory":{"value":"1G"}}`:                 "processMemory is 1Mi or more",
		`{HEADER,"processMemory":"1e999999999"}`:                  "processMemory is 1Mi or more",
		`{HEADER,"processMemory":"1e-999999999"}`:                 "processMemory is 1Mi or more",
		`{"env":"None"}`:                                          otherKind,
		`{"apiVersion":"gpu.aliyun.com/v1","kind":"GpuConfig"}`:   otherKind,
		`{"apiVersion":1,"kind":"GpuConfig"}`:                     otherKind,
		`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"Other"}`: otherKind,
	} {
		t.Run(parameters, func(t *testing.T) {
			raw := strings.Replace(parameters, "HEADER", header, 1)
			if _, err := v1alpha1.Decode([]byte(raw)); (err != nil) != (refused != "") {
				t.Errorf("the plugin says %v", err)
			}
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c"}}
			claim.Spec.Devices = claimed(exactly("a", "share"))
			for driver, refused := range map[string]string{v1alpha1.DriverName: refused, "gpu.example.com": ""} {
				claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{
					{DeviceConfiguration: opaque(driver, raw)}}
				expect.Error(t, s.validate(somebody, claim, nil), refused)
				expect.Error(t, s.validate(somebody, templateOf(claim), nil), refused)
			}
		})
	}
}

// The amounts of a share are refused that the scheduler would round, or that would close its GPU to others.
func TestAmountsOfClaims(t *testing.T) {
	s := newServer(t)
	const (
		wholeGi, steps = " is not a whole number of Gi", " is not a multiple of 5 from 0 to 100"
		needsBoth      = " needs both memory (1Gi, 2Gi, ...) and cores"
		oneSlot        = ": a share takes one slot of its GPU"
	)
	either := func(name, amount string) resourceapi.DeviceRequest {
		r := firstOf("a", "share", "cgpu")
		r.FirstAvailable[0].Capacity = asking("share", "memory", "3Gi").Exactly.Capacity
		r.FirstAvailable[1].Capacity = asking("cgpu", name, amount).Exactly.Capacity
		return r
	}
	otherDriver := asking("share", "memory", "1500Mi")
	otherDriver.Exactly.DeviceClassName = "gpu.example.com"
	for name, test := range map[string]struct {
		request resourceapi.DeviceRequest
		refused string
	}{
		"whole Gi":                     {asking("share", "memory", "3Gi"), ""},
		"the same in bytes":            {asking("share", "memory", "3221225472"), ""},
		"the same in Mi":               {asking("share", "memory", "3072Mi"), ""},
		"no amount":                    {asking("share"), ""},
		"no capacity":                  {exactly("a", "share"), ""},
		"broken Gi":                    {asking("share", "memory", "1500Mi"), "request a: memory 1500Mi" + wholeGi},
		"bytes that were meant as GiB": {asking("share", "memory", "3"), "memory 3" + wholeGi},
		"half of a byte":               {asking("share", "memory", "500m"), "memory 500m" + wholeGi},
		"more than an integer holds":   {asking("share", "memory", "100E"), wholeGi},
		"an endless number":            {asking("exclusive", "memory", "1e999"), "exponent of three digits"},
		"an endless one of others":     {asking("gpu", "memory", "1e999"), "exponent of three digits"},
		"an exponent":                  {asking("exclusive", "memory", "1e10"), ""},
		"negative memory":              {asking("share", "memory", "-1Gi"), "memory -1Gi" + wholeGi},
		"no memory":                    {asking("share", "memory", "0"), "memory 0" + wholeGi},
		"memory of a model's share":    {asking("share.nvidia-a10", "memory", "1500Mi"), "memory 1500Mi" + wholeGi},
		"whole GPUs of a model":        {asking("exclusive.nvidia-a10", "memory", "1500Mi"), ""},
		"another driver's":             {otherDriver, ""},
		"a model in any mode":          {asking("nvidia-a10", "memory", "3Gi", "cores", "35"), ""},
		"any mode, broken Gi":          {asking("nvidia-a10", "memory", "3"), "memory 3" + wholeGi},
		"any mode, seven percent":      {asking("nvidia-a10", "memory", "1Gi", "cores", "7"), "cores 7" + steps},

		"no cores":                     {asking("share", "memory", "1Gi", "cores", "0"), ""},
		"cores where none are granted": {asking("share", "cores", "35"), "class share.gpu.aliyun.com grants no compute"},
		"seven percent":                {asking("share", "cores", "7"), "cores 7" + steps},
		"half a percent":               {asking("share", "cores", "500m"), "cores 500m" + steps},
		"negative cores":               {asking("share", "cores", "-5"), "cores -5" + steps},
		"more than a GPU's cores":      {asking("share", "cores", "105"), "cores 105" + steps},
		"memory and cores":             {asking("core-mem", "memory", "1Gi", "cores", "35"), ""},
		"cores without memory":         {asking("core-mem", "cores", "35"), "class core-mem.gpu.aliyun.com" + needsBoth},
		"memory without cores":         {asking("core-mem", "memory", "1Gi"), needsBoth},
		"no percent":                   {asking("core-mem", "memory", "1Gi", "cores", "0"), needsBoth},
		"neither memory nor cores":     {exactly("a", "core-mem"), needsBoth},
		"memory alone, of a model":     {asking("core-mem.nvidia-a10", "memory", "1Gi"), "a10.gpu.aliyun.com" + needsBoth},
		"seven percent of core-mem":    {asking("core-mem", "memory", "1Gi", "cores", "7"), "cores 7" + steps},
		"101 percent of core-mem":      {asking("core-mem", "memory", "1Gi", "cores", "101"), "cores 101" + steps},

		"one slot":             {asking("share", "slots", "1"), ""},
		"all of a GPU's slots": {asking("share", "memory", "1Gi", "slots", "20"), "slots 20" + oneSlot},
		"slots of any share":   {asking("memory", "slots", "2"), "slots 2" + oneSlot},
		"slots of any mode":    {asking("nvidia-a10", "slots", "2"), "slots 2" + oneSlot},
		"slots of a model":     {asking("mps.nvidia-a10", "memory", "1Gi", "slots", "2"), "slots 2" + oneSlot},
		"no slots":             {asking("share", "slots", "0"), "slots 0" + oneSlot},
		"negative slots":       {asking("share", "slots", "-1"), "slots -1" + oneSlot},

		"alternatives":               {either("memory", "2Gi"), ""},
		"memory of an alternative":   {either("memory", "1500Mi"), "request a/cgpu: memory 1500Mi" + wholeGi},
		"an endless alternative":     {either("cores", "1e999"), "exponent of three digits"},
		"cores of an alternative":    {either("cores", "7"), "request a/cgpu: cores 7" + steps},
		"slots of an alternative":    {either("slots", "2"), "request a/cgpu: slots 2" + oneSlot},
		"admin who takes nothing":    {admin(asking("share", "memory", "0", "slots", "0")), ""},
		"admin who takes slots":      {admin(asking("share", "slots", "2")), "slots 2" + oneSlot},
		"admin who takes broken Gi":  {admin(asking("share", "memory", "1500Mi")), "memory 1500Mi" + wholeGi},
		"admin who takes negative":   {admin(asking("share", "memory", "-1Gi")), "memory -1Gi" + wholeGi},
		"admin with memory and slot": {admin(asking("share", "memory", "1Gi", "slots", "1")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c"}}
			claim.Spec.Devices = claimed(test.request)
			expect.Error(t, s.validate(somebody, claim, nil), test.refused)
			expect.Error(t, s.validate(somebody, templateOf(claim), nil), test.refused)
		})
	}
}

// What `helm test` asks for by the chart's value test.deviceClass is not refused.
func TestClaimsOfHelmTest(t *testing.T) {
	s := newServer(t)
	for _, object := range decoded(t, "testdata/helm-test.yaml") {
		template, is := object.(*resourceapi.ResourceClaimTemplate)
		if !is {
			t.Fatalf("there is a %T", object)
		}
		template.Namespace = team
		class := template.Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName
		if err := errors.Join(s.validate(somebody, template, nil), s.createClaim(team,
			template.Spec.Spec.Devices)); err != nil {
			t.Errorf("template and claim of %s: %v", class, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/cel"
)

// objectSize is the most that etcd stores of an object; pods and claims are cut off a bit earlier.
const objectSize = 1 << 20

// limits is what the API server's own validation allows of a pod and its claims, as far as candidates
// could break it.
type limits struct {
	// expressions are what is known of them.
	expressions map[string]error
}

func newLimits() *limits { return &limits{expressions: map[string]error{}} }

func (l *limits) check(c *candidate) error {
	pod := c.pod()
	if len(pod.Spec.Containers) == 0 {
		return errors.New("a pod has a container")
	}
	for _, k := range c.Containers {
		for name, amount := range k.Limits {
			if len(validation.IsQualifiedName(name)) > 0 || amount < 1 {
				return fmt.Errorf("resource %s: %d", name, amount)
			}
		}
	}
	if text, err := json.Marshal(pod); err != nil || len(text) > objectSize {
		return errors.New("the pod is too large")
	}
	for _, r := range c.References {
		if r.Claim < 0 || r.Claim >= len(c.Claims) {
			return errors.New("no such claim")
		}
	}
	others := 0
	for i := range c.Claims {
		if err := l.checkClaim(&c.Claims[i]); err != nil {
			return err
		}
		for _, r := range c.Claims[i].Requests {
			if r.Exactly != nil && r.Exactly.DeviceClassName == classOfOthers {
				others++
			}
			for _, s := range r.FirstAvailable {
				if s.DeviceClassName == classOfOthers {
					others++
				}
			}
		}
	}
	if others > mostOfOthers {
		return errors.New("what other drivers' requests cost is not searched for")
	}
	return nil
}

// mostOfOthers bounds the requests for another driver's devices: by themselves they cost what they cost without this
// driver, and no policy of it may refuse them. Beside requests for GPUs one is as good as many.
const (
	classOfOthers = "nic.example.com"
	mostOfOthers  = 4
)

func (l *limits) checkClaim(claim *resourceapi.DeviceClaim) error {
	if text, err := json.Marshal(claim); err != nil || len(text) > objectSize {
		return errors.New("the claim is too large")
	}
	if len(claim.Requests) > resourceapi.DeviceRequestsMaxSize {
		return errors.New("too many requests")
	}
	if len(claim.Constraints) > resourceapi.DeviceConstraintsMaxSize {
		return errors.New("too many constraints")
	}
	names := map[string]bool{}
	for i := range claim.Requests {
		r := &claim.Requests[i]
		if names[r.Name] || len(validation.IsDNS1123Label(r.Name)) > 0 ||
			(r.Exactly == nil) == (len(r.FirstAvailable) == 0) ||
			len(r.FirstAvailable) > resourceapi.FirstAvailableDeviceRequestMaxSize {
			return fmt.Errorf("request %s", r.Name)
		}
		names[r.Name] = true
		for _, s := range alternatives(r) {
			if err := l.checkRequest(s); err != nil {
				return fmt.Errorf("request %s: %w", r.Name, err)
			}
			if r.Exactly == nil {
				if names[r.Name+"/"+s.Name] {
					return fmt.Errorf("request %s/%s", r.Name, s.Name)
				}
				names[r.Name+"/"+s.Name] = true
			}
		}
	}
	for _, c := range claim.Constraints {
		if len(c.Requests) > resourceapi.DeviceRequestsMaxSize ||
			(c.MatchAttribute == nil) == (c.DistinctAttribute == nil) {
			return errors.New("constraint")
		}
		seen := map[string]bool{}
		for _, name := range c.Requests {
			if !names[name] || seen[name] {
				return fmt.Errorf("constraint on request %s", name)
			}
			seen[name] = true
		}
	}
	return nil
}

// alternatives are what a request asks for, each as a subrequest, which has all but adminAccess.
func alternatives(r *resourceapi.DeviceRequest) []*resourceapi.DeviceSubRequest {
	if e := r.Exactly; e != nil {
		return []*resourceapi.DeviceSubRequest{{Name: r.Name, DeviceClassName: e.DeviceClassName,
			Selectors:      e.Selectors,
			AllocationMode: e.AllocationMode, Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity}}
	}
	var out []*resourceapi.DeviceSubRequest
	for i := range r.FirstAvailable {
		out = append(out, &r.FirstAvailable[i])
	}
	return out
}

func (l *limits) checkRequest(s *resourceapi.DeviceSubRequest) error {
	if (s.AllocationMode == resourceapi.DeviceAllocationModeAll) != (s.Count == 0) || s.Count < 0 {
		return fmt.Errorf("count %d in mode %s", s.Count, s.AllocationMode)
	}
	if len(s.Selectors) > resourceapi.DeviceSelectorsMaxSize ||
		len(s.Tolerations) > resourceapi.DeviceTolerationsMaxLength {
		return errors.New("too many selectors or tolerations")
	}
	for _, selector := range s.Selectors {
		if err := l.expression(selector.CEL.Expression); err != nil {
			return err
		}
	}
	return nil
}

// expression is why the API server does not take a selector.
func (l *limits) expression(text string) error {
	err, known := l.expressions[text]
	if known {
		return err
	}
	if len(l.expressions) > 2000 {
		clear(l.expressions)
	}
	if len(text) > resourceapi.CELSelectorExpressionMaxLength {
		err = errors.New("the expression is too long")
	} else if r := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(text,
		cel.Options{}); r.Error != nil {
		err = errors.New(r.Error.Detail)
	} else if r.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		err = errors.New("the expression is too dear")
	}
	l.expressions[text] = err
	return err
}

// resourceNames are names by which containers ask for devices of the classes.
func resourceNames(classes []*resourceapi.DeviceClass) []string {
	names := []string{"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu"}
	for _, c := range classes {
		if name := resourceapi.ResourceDeviceClassPrefix + c.Name; len(validation.IsQualifiedName(name)) == 0 {
			names = append(names, name)
		}
		if c.Spec.ExtendedResourceName != nil {
			names = append(names, *c.Spec.ExtendedResourceName)
		}
	}
	return names
}

// ofACK reports whether a limit is in the manner of ACK.
func ofACK(name string) bool { return strings.HasPrefix(name, "aliyun.com/") }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// template is a claim such as the driver makes for pods in the manner of ACK, as somebody could write it: what the
// policies admit for their sake is not far from it.
func (m *changer) template() *candidate {
	gpus, containers := 1+m.random.IntN(8), 1+m.random.IntN(4)
	name := pick(m, "gpu", "nvidia", "mem", "core")
	shares := name == "mem" || name == "core"
	text := "gpushare." + name
	if shares && gpus > 1 {
		text += fmt.Sprintf("-x%d", gpus)
	}
	for i := range containers {
		text += fmt.Sprintf(".c%d.%d", i, gpus)
		if name == "core" {
			text += fmt.Sprintf("-%d", 5*gpus)
		}
	}
	c := &candidate{Containers: []container{{}}}
	request, err := legacy.ParseName(text)
	if err != nil {
		return c
	}
	claim := request.Template(namespace).Spec.Spec.Devices
	claim.Config = nil
	names := map[string]string{}
	for i, r := range claim.Requests {
		names[r.Name] = fmt.Sprintf("r%d", i)
	}
	for i := range claim.Constraints {
		for j, of := range claim.Constraints[i].Requests {
			claim.Constraints[i].Requests[j] = names[of]
		}
	}
	c.Claims, c.References = []resourceapi.DeviceClaim{claim}, []reference{{Claim: 0}}
	m.rename(c)
	if m.oneIn(2) {
		m.failLast(c)
	}
	return c
}

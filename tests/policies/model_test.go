// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// share is what the model makes of a container that asks.
type share struct {
	name             string
	mem, cores, gpus int64
}

// model is what the policies are to make of a pod, written once more from ACK's rules
// and what a claim can hold, with nothing of the driver but the names of resources and
// labels: the name of the pod's template, empty where it asks for nothing, or an error
// where it has to be refused. It does not look at who is opted out.
//
// Init containers that end before the others begin have no amounts of their own, as
// on ACK; sidecars have.
func model(pod *corev1.Pod) (string, error) {
	all := slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)
	if slices.ContainsFunc(all, func(c corev1.Container) bool {
		count := c.Resources.Limits[ack.ResourceCount]
		return !count.IsZero() && (count.CmpInt64(1) != 0 || !asks(c, ack.ResourceMemory))
	}) {
		return "", errors.New("a number of GPUs gives no GPU")
	}
	var shares []share
	onlyInit := false
	for i, c := range all {
		lasts := i < len(pod.Spec.Containers) || c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		switch {
		case !asks(c, ack.ResourceMemory, ack.ResourceCores, ack.ResourceGPUs):
		case !lasts:
			onlyInit = true
		default:
			s, err := shareOf(c)
			if err != nil {
				return "", err
			}
			shares = append(shares, s)
		}
	}
	if len(shares) == 0 {
		if onlyInit {
			return "", errors.New("only init containers ask")
		}
		return "", nil
	}
	if slices.ContainsFunc(pod.Spec.ResourceClaims,
		func(c corev1.PodResourceClaim) bool { return c.Name == legacy.ClaimName }) {
		return "", errors.New("the claim's name is taken")
	}
	if shares[0].gpus > 0 {
		return ofGPUs(shares)
	}
	return ofShares(shares, pod.Labels)
}

func asks(c corev1.Container, resources ...corev1.ResourceName) bool {
	return slices.ContainsFunc(resources, func(name corev1.ResourceName) bool {
		q := c.Resources.Limits[name]
		return !q.IsZero()
	})
}

func shareOf(c corev1.Container) (share, error) {
	s := share{name: c.Name}
	for _, amount := range []struct {
		name  corev1.ResourceName
		field *int64
	}{{ack.ResourceMemory, &s.mem}, {ack.ResourceCores, &s.cores}, {ack.ResourceGPUs, &s.gpus}} {
		q := c.Resources.Limits[amount.name]
		value, whole := q.AsInt64()
		if !whole || !q.IsZero() && q.Format != resource.DecimalSI {
			return share{}, fmt.Errorf("%s %s is no whole number", amount.name, q.String())
		}
		*amount.field = value
	}
	return s, nil
}

// What any claim can have, and what any GPU.
const (
	results      = 32
	gibOfGPU     = 999
	percentStep  = 5
	percentMost  = 100
	templateMost = 253
	byGPUMost    = 56
)

// ofGPUs is the template for whole count, of which the pod's labels say nothing.
func ofGPUs(shares []share) (string, error) {
	sum := int64(0)
	for _, s := range shares {
		if s.gpus == 0 || s.mem+s.cores > 0 {
			return "", errors.New("different resources")
		}
		sum += s.gpus
	}
	if sum > results {
		return "", errors.New("more GPUs than there can be")
	}
	if sum > 8 && sum < 15 && len(shares) > 3 || len(shares) == 1 && sum > 16 {
		return "", errors.New("more GPUs than are looked for")
	}
	return nameOf("gpushare.gpu", shares, templateMost, func(s share) string { return fmt.Sprint(s.gpus) })
}

// nameOf is a template's name: of the shares by their names, if none is longer than most and all
// fit, else by their place.
func nameOf(head string, shares []share, most int, said func(share) string) (string, error) {
	byName, byPlace := head, head
	for i, s := range shares {
		byName += "." + s.name + "." + said(s)
		byPlace += fmt.Sprintf(".%d.%s", i, said(s))
	}
	switch {
	case len(byName) <= templateMost && !slices.ContainsFunc(shares, func(s share) bool { return len(s.name) > most }):
		return byName, nil
	case len(byPlace) <= templateMost:
		return byPlace, nil
	default:
		return "", errors.New("more than a name can say")
	}
}

func ofShares(shares []share, labels map[string]string) (string, error) {
	count, err := gpusOf(labels[ack.PodLabelCount])
	if err != nil {
		return "", err
	}
	withCores := shares[0].cores > 0
	name := "gpushare.mem"
	if withCores {
		name = "gpushare.core"
	}
	if count > 1 {
		name += fmt.Sprintf("-x%d", count)
	}
	switch labels[ack.PodLabelPlacement] {
	case "":
	case "require-whole-device":
		name += "-whole"
	default:
		return "", errors.New("another placement")
	}
	if count*int64(len(shares)) > results {
		return "", errors.New("more shares than a claim can hold")
	}
	if count > 13 || count > 8 && len(shares) > 1 {
		return "", errors.New("more GPUs than are looked for")
	}
	for _, s := range shares {
		switch mem, cores := s.mem/count, s.cores/count; {
		case s.mem == 0 || s.gpus > 0 || withCores != (s.cores > 0):
			return "", errors.New("different resources")
		case s.mem%count+s.cores%count > 0:
			return "", errors.New("not the same of each GPU")
		case mem > gibOfGPU || cores > percentMost || cores%percentStep > 0:
			return "", errors.New("no GPU has that")
		}
	}
	most := templateMost
	if count > 1 && len(shares) > 1 {
		most = byGPUMost
	}
	return nameOf(name, shares, most, func(s share) string {
		if withCores {
			return fmt.Sprintf("%d-%d", s.mem, s.cores)
		}
		return fmt.Sprint(s.mem)
	})
}

// gpusOf reads a number of count; none and 0 are one GPU.
func gpusOf(label string) (int64, error) {
	count := int64(0)
	for _, digit := range label {
		if !strings.ContainsRune("0123456789", digit) {
			return 0, errors.New("not a number of GPUs")
		}
		if count = count*10 + int64(digit-'0'); count > results {
			return 0, errors.New("more GPUs than a claim can hold")
		}
	}
	return max(count, 1), nil
}

// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// What amounts look like that can be had, and a number of GPUs in a label.
var (
	wholeMemory = regexp.MustCompile(`^(0|[1-9][0-9]{0,4})$`)
	wholeCores  = regexp.MustCompile(`^(0|[1-9][0-9]{0,3})$`)
	wholeGPUs   = regexp.MustCompile(`^(0|[1-9]|[12][0-9]|3[0-2])$`)
	thousands   = regexp.MustCompile(`^[1-9][0-9]*k$`)
	countLabel  = regexp.MustCompile(`^0*([0-9]|[12][0-9]|3[0-2])?$`)
)

// mostName is how long the name of a template may be.
const mostName = 253

// asked is what one container says, as the API server writes it; "0" where it says nothing.
type asked struct {
	name                      string
	memory, cores, gpus, many string
	// lasts is whether it runs as long as the pod and so has a share of its own.
	lasts bool
}

func (a asked) any() bool { return a.memory != "0" || a.cores != "0" || a.gpus != "0" }

func askedOf(pod *corev1.Pod) []asked {
	var out []asked
	for i, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		limit := func(name corev1.ResourceName) string {
			amount, ok := c.Resources.Limits[name]
			if !ok {
				return "0"
			}
			return amount.String()
		}
		out = append(out, asked{
			name: c.Name, memory: limit(ack.ResourceMemory), cores: limit(ack.ResourceCores), gpus: limit(ack.ResourceGPUs),
			many: limit(ack.ResourceCount),
			lasts: i < len(pod.Spec.Containers) ||
				c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways,
		})
	}
	return out
}

// Asks reports whether a pod asks for GPUs by the limits of its containers in the manner of ACK.
func Asks(pod *corev1.Pod) bool {
	return slices.ContainsFunc(askedOf(pod), func(a asked) bool { return a.any() || a.many != "0" })
}

// OfSystem reports whether a namespace is one of those whose pods the policies leave alone.
func OfSystem(namespace string) bool {
	return namespace == metav1.NamespaceSystem || namespace == metav1.NamespacePublic ||
		namespace == corev1.NamespaceNodeLease
}

// OfPod is what a pod that Asks is converted to by the policy gpushare-legacy-convert; an
// error tells in its words why it cannot be. It does not look at who is left alone. CPUs of
// a container's own are another policy's.
func OfPod(pod *corev1.Pod) (Request, error) {
	all := askedOf(pod)
	for _, a := range all {
		if a.many != "0" && (a.many != "1" || a.memory == "0") {
			return Request{}, errors.New("a container asks for aliyun.com/gpu-count, which gives it no GPU: ask for " +
				"aliyun.com/gpu-mem, beside which it may be 1, and set aliyun.com/gpu-count as a label of the pod to have it " +
				"of several GPUs")
		}
	}
	own := slices.DeleteFunc(all, func(a asked) bool { return !a.lasts || !a.any() })
	kind, err := kindOf(own)
	if err != nil {
		return Request{}, err
	}
	r := Request{Kind: kind, Count: 1}
	for _, a := range own {
		c, err := a.container()
		if err != nil {
			return Request{}, err
		}
		r.Containers = append(r.Containers, c)
	}
	if kind != GPUs {
		if err := r.readLabels(pod.Labels); err != nil {
			return Request{}, err
		}
	}
	r = r.called()
	if err := r.validate(); err != nil {
		return Request{}, err
	}
	if len(r.Name()) > mostName {
		return Request{}, fmt.Errorf("the containers ask for more compute together than a GPU has, and their amounts do not "+
			"fit into the name of a ResourceClaimTemplate, which has %d characters at most", mostName)
	}
	if slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == ClaimName }) {
		return Request{}, fmt.Errorf("the pod has an entry %q in spec.resourceClaims, which is the name of the claim that "+
			"its GPU limits would become: rename it", ClaimName)
	}
	return r, nil
}

// kindOf is what all containers have to ask for alike.
func kindOf(own []asked) (Kind, error) {
	all := func(is func(asked) bool) bool {
		return !slices.ContainsFunc(own, func(a asked) bool { return !is(a) })
	}
	switch {
	case len(own) == 0:
		return "", errors.New("only init containers ask for a GPU: their amounts do not count, as on ACK; let a container " +
			"or a sidecar ask, init containers then use its share")
	case slices.ContainsFunc(own, func(a asked) bool { return a.cores != "0" && a.memory == "0" }):
		return "", errors.New("reqeust resources must include aliyun.com/gpu-mem")
	case all(func(a asked) bool { return a.memory != "0" && a.cores == "0" && a.gpus == "0" }):
		return Memory, nil
	case all(func(a asked) bool { return a.memory != "0" && a.cores != "0" && a.gpus == "0" }):
		return CoreMemory, nil
	case all(func(a asked) bool { return a.memory == "0" && a.cores == "0" && a.gpus != "0" }):
		return GPUs, nil
	default:
		//lint:ignore ST1005 These are ACK's words.
		return "", errors.New("The requested gpu resource types should be consistent for all containers")
	}
}

// container reads the amounts.
func (a asked) container() (Container, error) {
	c := Container{Name: a.name}
	for _, amount := range []struct {
		resource, text, what string
		whole                *regexp.Regexp
		into                 *int64
	}{
		{ack.ResourceMemory, a.memory, "GiB, from 1 to 999 on each GPU", wholeMemory, &c.MemoryGiB},
		{ack.ResourceCores, a.cores, "percent, from 5 to 100 on each GPU", wholeCores, &c.CoresPercent},
		{ack.ResourceGPUs, a.gpus, "GPUs, from 1 to 32", wholeGPUs, &c.GPUs},
	} {
		// The API server writes multiples of 1000 as in 2k, and no GPU has 1000 others.
		if amount.resource != ack.ResourceGPUs && thousands.MatchString(amount.text) {
			amount.text = strings.Replace(amount.text, "k", "000", 1)
		}
		n, err := strconv.ParseInt(amount.text, 10, 64)
		if err != nil || !amount.whole.MatchString(amount.text) {
			return c, fmt.Errorf("%s %s of container %s is not a plain whole number of %s", amount.resource, amount.text,
				a.name, amount.what)
		}
		*amount.into = n
	}
	return c, nil
}

// readLabels reads what the pod's labels say of its shares.
func (r *Request) readLabels(labels map[string]string) error {
	text := labels[ack.PodLabelCount]
	if !countLabel.MatchString(text) {
		return fmt.Errorf("failed to parse request device count from pod label aliyun.com/gpu-count,reason: strconv.Atoi: "+
			"parsing %q: it is a whole number of at most %d GPUs", text, mostGPUs)
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		r.Count = n
	}
	switch labels[ack.PodLabelPlacement] {
	case "":
	case ack.RequireWholeDevice:
		r.Whole = true
	default:
		//lint:ignore ST1005 These are ACK's words.
		return errors.New("Invalid value of pod label ack.gpushare.placement:only support [require-whole-device]")
	}
	return nil
}

// Convert is the pod with its claim in place of its limits, as gpushare-legacy-convert makes
// it of one whose request is r.
func Convert(pod *corev1.Pod, r Request) *corev1.Pod {
	converted := pod.DeepCopy()
	template := r.Name()
	converted.Spec.ResourceClaims = append(converted.Spec.ResourceClaims,
		corev1.PodResourceClaim{Name: ClaimName, ResourceClaimTemplateName: &template})
	for _, containers := range [][]corev1.Container{converted.Spec.Containers, converted.Spec.InitContainers} {
		for i := range containers {
			resources := &containers[i].Resources
			for _, name := range Names() {
				delete(resources.Limits, name)
				delete(resources.Requests, name)
			}
		}
	}
	if converted.Labels == nil {
		converted.Labels = map[string]string{}
	}
	converted.Labels[v1alpha1.LabelLegacy] = "true"
	return converted
}

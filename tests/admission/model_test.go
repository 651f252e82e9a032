package admission

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat/legacy"
)

// model is what the policies are to make of a pod, written once more in another
// language: the request that the pod's claim is made of, nil where it asks for
// nothing, or an error where it has to be refused. It does not look at who is opted
// out.
//
// Init containers that end before the others begin have no amounts of their own, as
// on ACK; sidecars have.
func model(pod *corev1.Pod) (*legacy.Request, error) {
	r := &legacy.Request{Count: 1}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if q := c.Resources.Limits[legacy.ResourceCount]; !q.IsZero() {
			return nil, fmt.Errorf("container %q asks for %s, which gives it no card", c.Name, legacy.ResourceCount)
		}
	}
	onlyInit := false
	for _, c := range pod.Spec.Containers {
		if err := add(r, c); err != nil {
			return nil, err
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			onlyInit = onlyInit || asks(c)
		} else if err := add(r, c); err != nil {
			return nil, err
		}
	}
	if len(r.Containers) == 0 {
		if onlyInit {
			return nil, errors.New("only init containers ask for a GPU")
		}
		return nil, nil
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.Name == legacy.ClaimName {
			return nil, fmt.Errorf("the pod has a claim named %q already", legacy.ClaimName)
		}
	}
	if err := setLabels(r, pod.Labels); err != nil {
		return nil, err
	}
	if len(r.Name()) > 253 {
		return nil, errors.New("the names of the containers are too long")
	}
	// What can be had is what the controller makes a template for.
	if _, err := legacy.ParseName(r.Name()); err != nil {
		return nil, err
	}
	return r, nil
}

// add takes in what a container asks for, if it does.
func add(r *legacy.Request, c corev1.Container) error {
	if !asks(c) {
		return nil
	}
	out := legacy.Container{Name: c.Name}
	for _, amount := range []struct {
		name  corev1.ResourceName
		field *int64
	}{{legacy.ResourceMemory, &out.MemoryGiB}, {legacy.ResourceCores, &out.CoresPercent}, {legacy.ResourceCards, &out.Cards}} {
		// 10G is a whole number too, but not of GiB.
		q := c.Resources.Limits[amount.name]
		value, err := strconv.ParseInt(q.String(), 10, 64)
		if err != nil {
			return fmt.Errorf("container %q: %s %s is not a plain whole number", c.Name, amount.name, q.String())
		}
		*amount.field = value
	}
	kind, err := kindOf(out)
	if err != nil {
		return fmt.Errorf("container %q: %w", c.Name, err)
	}
	if len(r.Containers) > 0 && r.Kind != kind {
		return errInconsistent
	}
	r.Kind = kind
	r.Containers = append(r.Containers, out)
	return nil
}

func asks(c corev1.Container) bool {
	for _, name := range []corev1.ResourceName{legacy.ResourceMemory, legacy.ResourceCores, legacy.ResourceCards} {
		if q := c.Resources.Limits[name]; !q.IsZero() {
			return true
		}
	}
	return false
}

// ACK's texts, misspellings included (facts: the scheduler's gpushare plugin).
var (
	//lint:ignore ST1005 ACK's text
	errInconsistent = errors.New("The requested gpu resource types should be consistent for all containers")
	errNoMemory     = errors.New("reqeust resources must include aliyun.com/gpu-mem")
)

func kindOf(c legacy.Container) (legacy.Kind, error) {
	switch memory, cores, cards := c.MemoryGiB != 0, c.CoresPercent != 0, c.Cards != 0; {
	case memory && !cores && !cards:
		return legacy.Memory, nil
	case memory && cores && !cards:
		return legacy.CoreMemory, nil
	case cards && !memory && !cores:
		return legacy.Cards, nil
	case cores && !memory:
		return "", errNoMemory
	default:
		return "", errInconsistent
	}
}

// setLabels takes in what the pod's labels say of shares; they say nothing of whole
// cards.
func setLabels(r *legacy.Request, labels map[string]string) error {
	if r.Kind == legacy.Cards {
		return nil
	}
	if text := labels[legacy.LabelCount]; text != "" {
		count, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("failed to parse request device count from pod label %s,reason: %w", legacy.LabelCount, err)
		}
		// 0 is as good as no label.
		r.Count = max(count, 1)
	}
	switch labels[legacy.LabelPlacement] {
	case "":
	case legacy.RequireWholeDevice:
		r.Whole = true
	default:
		return fmt.Errorf("Invalid value of pod label %s:only support [%s]", legacy.LabelPlacement, legacy.RequireWholeDevice)
	}
	return nil
}

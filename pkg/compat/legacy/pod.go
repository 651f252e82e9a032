package legacy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// FromPod is what the policy gpushare-legacy-convert makes of a pod that asks and
// has not been converted, and the error why it leaves one as it is; nil where the
// pod asks for nothing. It does not look at who is opted out.
//
// Init containers that end before the others begin have no amounts of their own, as
// on ACK; sidecars have.
func FromPod(pod *corev1.Pod) (*Request, error) {
	r := &Request{Count: 1}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if q := c.Resources.Limits[ResourceCount]; !q.IsZero() {
			return nil, fmt.Errorf("container %q asks for %s, which gives it no card", c.Name, ResourceCount)
		}
	}
	onlyInit := false
	for _, c := range pod.Spec.Containers {
		if err := r.add(c); err != nil {
			return nil, err
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			onlyInit = onlyInit || asks(c)
		} else if err := r.add(c); err != nil {
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
		if c.Name == ClaimName {
			return nil, fmt.Errorf("the pod has a claim named %q already", ClaimName)
		}
	}
	if err := r.setLabels(pod.Labels); err != nil {
		return nil, err
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	if len(r.Name()) > mostName {
		return nil, fmt.Errorf("the names of the containers are too long: together with their amounts they have %d characters, %d at most", len(r.Name()), mostName)
	}
	return r, nil
}

// add takes in what a container asks for, if it does.
func (r *Request) add(c corev1.Container) error {
	if !asks(c) {
		return nil
	}
	out := Container{Name: c.Name}
	for _, amount := range []struct {
		name  corev1.ResourceName
		field *int64
	}{{ResourceMemory, &out.MemoryGiB}, {ResourceCores, &out.CoresPercent}, {ResourceCards, &out.Cards}} {
		// 10G is a whole number too, but not of GiB.
		q := c.Resources.Limits[amount.name]
		value, err := strconv.ParseInt(q.String(), 10, 64)
		if err != nil {
			return fmt.Errorf("container %q: %s %s is not a plain whole number", c.Name, amount.name, q.String())
		}
		*amount.field = value
	}
	kind, err := out.kind()
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
	for _, name := range []corev1.ResourceName{ResourceMemory, ResourceCores, ResourceCards} {
		if q := c.Resources.Limits[name]; !q.IsZero() {
			return true
		}
	}
	return false
}

// ACK's texts, misspellings included, since people search for them (facts: the
// scheduler's gpushare plugin).
var (
	//lint:ignore ST1005 ACK's text
	errInconsistent = errors.New("The requested gpu resource types should be consistent for all containers")
	errNoMemory     = errors.New("reqeust resources must include " + ResourceMemory)
)

func (c Container) kind() (Kind, error) {
	switch memory, cores, cards := c.MemoryGiB != 0, c.CoresPercent != 0, c.Cards != 0; {
	case memory && !cores && !cards:
		return Memory, nil
	case memory && cores && !cards:
		return CoreMemory, nil
	case cards && !memory && !cores:
		return Cards, nil
	case cores && !memory:
		return "", errNoMemory
	default:
		return "", errInconsistent
	}
}

// setLabels takes in what the pod's labels say of shares; they say nothing of whole
// cards.
func (r *Request) setLabels(labels map[string]string) error {
	if r.Kind == Cards {
		return nil
	}
	if text := labels[LabelCount]; text != "" {
		count, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("failed to parse request device count from pod label %s,reason: %w", LabelCount, err)
		}
		// 0 is as good as no label.
		r.Count = max(count, 1)
	}
	switch labels[LabelPlacement] {
	case "":
	case RequireWholeDevice:
		r.Whole = true
	default:
		//lint:ignore ST1005 ACK's text
		return fmt.Errorf("Invalid value of pod label %s:only support [%s]", LabelPlacement, RequireWholeDevice)
	}
	return nil
}

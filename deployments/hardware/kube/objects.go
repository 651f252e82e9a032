// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Metadata is what objects have in common.
type Metadata struct {
	Name        string            `json:"name"`
	UID         string            `json:"uid"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Pod is what a run looks at of a pod.
type Pod struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase      string `json:"phase"`
		Message    string `json:"message"`
		Conditions []struct {
			Type, Status, Message string
		} `json:"conditions"`
		ContainerStatuses []struct {
			Name         string `json:"name"`
			ContainerID  string `json:"containerID"`
			Ready        bool   `json:"ready"`
			RestartCount int    `json:"restartCount"`
			// Allocated has the health of the container's devices.
			Allocated []struct {
				Resources []struct {
					Health  string `json:"health"`
					Message string `json:"message"`
				} `json:"resources"`
			} `json:"allocatedResourcesStatus"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// Unschedulable is why the scheduler has found no place for the pod.
func (p Pod) Unschedulable() string {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			return c.Message
		}
	}
	return ""
}

// List is a list of objects.
type List[T any] struct {
	Items []T `json:"items"`
}

// Attribute is an attribute of a device.
type Attribute struct {
	String *string `json:"string"`
	Int    *int64  `json:"int"`
}

// Device is what a run looks at of a device in a ResourceSlice.
type Device struct {
	Name       string               `json:"name"`
	Attributes map[string]Attribute `json:"attributes"`
	Taints     []struct {
		Key string `json:"key"`
	} `json:"taints"`
}

// Text is the value of an attribute.
func (d Device) Text(name string) string {
	a := d.Attributes[name]
	switch {
	case a.String != nil:
		return *a.String
	case a.Int != nil:
		return fmt.Sprint(*a.Int)
	}
	return ""
}

// Slice is what a run looks at of a ResourceSlice.
type Slice struct {
	Spec struct {
		Driver  string   `json:"driver"`
		Devices []Device `json:"devices"`
	} `json:"spec"`
}

// Claim is what a run looks at of a ResourceClaim.
type Claim struct {
	Metadata Metadata `json:"metadata"`
	Status   struct {
		Allocation *struct {
			Devices struct {
				Results []struct {
					Request string `json:"request"`
					Device  string `json:"device"`
				} `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
		ReservedFor []struct {
			Name string `json:"name"`
		} `json:"reservedFor"`
		// Devices have what the driver says of them.
		Devices []struct {
			Data v1alpha1.DeviceStatus `json:"data"`
		} `json:"devices"`
	} `json:"status"`
}

// UUIDs are those of the GPUs and MIG instances that the driver says the claim has.
func (c Claim) UUIDs() []string {
	var uuids []string
	for _, device := range c.Status.Devices {
		for _, g := range device.Data.GPUs {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// Event is what a run looks at of an Event.
type Event struct {
	Reason        string    `json:"reason"`
	Message       string    `json:"message"`
	LastTimestamp time.Time `json:"lastTimestamp"`
	Involved      struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"involvedObject"`
}

// Devices are those that the driver publishes, of all its slices.
func (k Kubectl) Devices(ctx context.Context, driver string) ([]Device, error) {
	var slices List[Slice]
	if err := k.Get(ctx, &slices, "resourceslices"); err != nil {
		return nil, err
	}
	var devices []Device
	for _, slice := range slices.Items {
		if slice.Spec.Driver == driver {
			devices = append(devices, slice.Spec.Devices...)
		}
	}
	return devices, nil
}

// WaitRunning waits until pods run; it fails at once where one has ended.
func (k Kubectl) WaitRunning(ctx context.Context, limit time.Duration, pods ...string) error {
	for _, name := range pods {
		var ended error
		err := Until(ctx, limit, "pod "+name+" to run", func(ctx context.Context) error {
			var pod Pod
			if err := k.Get(ctx, &pod, "pod", name); err != nil {
				return err
			}
			switch pod.Status.Phase {
			case "Running":
				return nil
			case "Failed", "Succeeded":
				ended = fmt.Errorf("pod %s has ended (%s): %s", name, pod.Status.Phase, pod.Status.Message)
				return nil
			}
			return fmt.Errorf("it is %s %s", pod.Status.Phase, pod.Unschedulable())
		})
		if err != nil {
			return err
		}
		if ended != nil {
			return ended
		}
	}
	return nil
}

// WaitGone waits until a pod is gone.
func (k Kubectl) WaitGone(ctx context.Context, limit time.Duration, pod string) error {
	return Until(ctx, limit, "pod "+pod+" to be gone", func(ctx context.Context) error {
		var pods List[Pod]
		if err := k.Get(ctx, &pods, "pods", "--field-selector", "metadata.name="+pod); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("it is %s", pods.Items[0].Status.Phase)
		}
		return nil
	})
}

// WaitUnschedulable waits until the scheduler has found no place for a pod, and says why.
func (k Kubectl) WaitUnschedulable(ctx context.Context, limit time.Duration, name string) (reason string, err error) {
	err = Until(ctx, limit, "the scheduler to find no place for pod "+name, func(ctx context.Context) error {
		var pod Pod
		if err := k.Get(ctx, &pod, "pod", name); err != nil {
			return err
		}
		if reason = pod.Unschedulable(); reason == "" {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	return reason, err
}

// WaitEvent waits for an Event of an object with a reason and a text, not older than
// since, and returns its message.
func (k Kubectl) WaitEvent(
	ctx context.Context,
	limit time.Duration,
	kind, name, reason, text string,
	since time.Time,
) (message string, err error) {
	err = Until(ctx, limit, fmt.Sprintf("an Event %s of %s %s", reason, kind, name), func(ctx context.Context) error {
		var events List[Event]
		if err := k.Get(ctx, &events, "events"); err != nil {
			return err
		}
		for _, e := range events.Items {
			// Events carry whole seconds.
			old := e.LastTimestamp.Before(since.Truncate(time.Second))
			if e.Involved.Kind == kind && e.Involved.Name == name && e.Reason == reason && !old &&
				strings.Contains(e.Message, text) {
				message = e.Message
				return nil
			}
		}
		return fmt.Errorf("there is none among %d Events", len(events.Items))
	})
	return message, err
}

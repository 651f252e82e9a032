// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// object is a Kubernetes object as it is written in a manifest.
type object map[string]any

// apply makes objects.
func (r *run) apply(ctx context.Context, objects ...object) error {
	list, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	return r.Kubectl.Apply(ctx, string(list))
}

// template is a ResourceClaimTemplate with these requests.
func template(name string, requests ...object) object {
	return object{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": object{"name": name},
		"spec": object{"spec": object{"devices": object{"requests": requests}}},
	}
}

// wholeGPUs is a request for so many GPUs.
func wholeGPUs(count int) object {
	return object{"name": "gpu", "exactly": object{"deviceClassName": "exclusive.gpu.aliyun.com", "count": count}}
}

// shareOf is a request for a share, by the name of its mode in DeviceClasses.
func shareOf(class string, units int64, cores string) object {
	capacity := object{"memory": fmt.Sprintf("%dGi", units)}
	if cores != "" {
		capacity["cores"] = cores
	}
	return object{"name": "gpu", "exactly": object{
		"deviceClassName": class + ".gpu.aliyun.com", "capacity": object{"requests": capacity},
	}}
}

// onGPU adds to a request that it is for the GPU with an index.
func onGPU(request object, index int) object {
	exactly, ok := request["exactly"].(object)
	if !ok {
		return request
	}
	exactly = maps.Clone(exactly)
	exactly["selectors"] = []object{{"cel": object{
		"expression": fmt.Sprintf(`device.attributes["gpu.aliyun.com"].?index.orValue(-1) == %d`, index),
	}}}
	return object{"name": request["name"], "exactly": exactly}
}

// pod is a pod of the run, with one container that waits for programs to be run in it.
type pod struct {
	name string
	// template is that of its claim, if it has one.
	template string
	// limits are those of a pod as on ACK.
	limits map[string]string
	// uid is the user of its container; 0 is root.
	uid int64
}

func (p pod) object(s *Session) object {
	container := object{
		"name": "main", "image": s.Image, "imagePullPolicy": "IfNotPresent",
		"env": []object{{"name": "CUDAPROBE_LIBRARY", "value": s.Driver.CUDA}},
	}
	spec := object{
		"nodeName": nil, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
		"automountServiceAccountToken": false, "hostNetwork": true,
		"containers": []object{container},
	}
	delete(spec, "nodeName")
	if p.uid != 0 {
		container["securityContext"] = object{"runAsUser": p.uid, "runAsGroup": p.uid}
	}
	if p.limits != nil {
		container["resources"] = object{"limits": p.limits}
	}
	if p.template != "" {
		spec["resourceClaims"] = []object{{"name": "gpu", "resourceClaimTemplateName": p.template}}
		container["resources"] = object{"claims": []object{{"name": "gpu"}}}
	}
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": p.name}, "spec": spec}
}

// create makes pods, without waiting for them.
func (r *run) create(ctx context.Context, pods ...pod) error {
	var objects []object
	for _, p := range pods {
		objects = append(objects, p.object(r.Session))
	}
	return r.apply(ctx, objects...)
}

// start makes pods, waits until they run, and checks that they do.
func (r *run) start(ctx context.Context, what string, pods ...pod) error {
	began := time.Now()
	if err := r.create(ctx, pods...); err != nil {
		return err
	}
	for _, p := range pods {
		if err := r.Kubectl.WaitRunning(ctx, r.Patience, p.name); err != nil {
			return err
		}
	}
	r.check(what, "Running", "Running", true)
	r.took(began)
	return nil
}

// delete deletes pods and waits until they are gone.
func (r *run) delete(ctx context.Context, pods ...string) error {
	_, err := r.Kubectl.Run(ctx, append([]string{"delete", "pod", "--grace-period=1"}, pods...)...)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// install makes what pods and claims of the contestants need. What is there stays.
func install(ctx context.Context, client kubernetes.Interface, classes []*resourceapi.DeviceClass,
	contestants []contestant) error {
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make namespace %s: %w", namespace, err)
	}
	for _, class := range classes {
		_, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make DeviceClass %s: %w", class.Name, err)
		}
	}
	for _, k := range contestants {
		_, err := client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: k.template()},
			Spec: resourceapi.ResourceClaimTemplateSpec{
				Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: k.requests}}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make ResourceClaimTemplate %s: %w", k.template(), err)
		}
	}
	return nil
}

func (c contestant) template() string { return string(c.mode) }

// sizes are what the API server holds of one node.
type sizes struct{ slices, devices, json, protobuf int }

func sizesOf(ctx context.Context, client kubernetes.Interface, node string) (sizes, error) {
	stored, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node,
	})
	if err != nil {
		return sizes{}, fmt.Errorf("list the slices of node %s: %w", node, err)
	}
	s := sizes{slices: len(stored.Items)}
	for _, slice := range stored.Items {
		encoded, err := json.Marshal(slice)
		if err != nil {
			return s, fmt.Errorf("encode slice %s: %w", slice.Name, err)
		}
		s.devices += len(slice.Spec.Devices)
		s.json += len(encoded)
		s.protobuf += slice.Size()
	}
	return s, nil
}

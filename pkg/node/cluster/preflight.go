// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// MissingFeatureError says that the API server drops what a mode needs.
type MissingFeatureError struct{ features []string }

// Error implements error.
func (e *MissingFeatureError) Error() string {
	return fmt.Sprintf("the API server drops fields of the ResourceSlice that it needs: enable feature gate %s (on by "+
		"default since Kubernetes 1.36) on kube-apiserver and kube-scheduler", strings.Join(e.features, ", "))
}

// Features are what a pool needs of the API server beyond devices for one claim
// each. Where they are missing, what is stored means something else: a share
// would be a whole GPU, and a GPU could be allocated twice.
type Features struct{ Shares, Counters bool }

// Cover reports whether a server that has these features has all that is needed.
func (f Features) Cover(needed Features) bool {
	return (f.Shares || !needed.Shares) && (f.Counters || !needed.Counters)
}

// FeaturesOf says what the pool needs.
func FeaturesOf(resources resourceslice.DriverResources) Features {
	var f Features
	for _, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			f.Counters = f.Counters || len(slice.SharedCounters) > 0
			for _, device := range slice.Devices {
				f.Shares = f.Shares || device.AllowMultipleAllocations != nil
			}
		}
	}
	return f
}

// Preflight asks the API server, without storing anything, what it would keep
// of the pool. The error is a *MissingFeatureError if that is not all of it.
func Preflight(ctx context.Context, client kubernetes.Interface, nodeName string,
	resources resourceslice.DriverResources) error {
	for name, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			desired := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "preflight-"},
				Spec:       devices.SliceSpec(nodeName, name, pool, slice),
			}
			actual, err := client.ResourceV1().ResourceSlices().Create(ctx, desired,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return fmt.Errorf("ask the API server, by a dry run, whether it takes the node's ResourceSlice: %w", err)
			}
			dropped := &resourceslice.DroppedFieldsError{PoolName: name, DesiredSlice: desired, ActualSlice: actual}
			if features := dropped.DisabledFeatures(); len(features) > 0 {
				return &MissingFeatureError{features: features}
			}
		}
	}
	return nil
}

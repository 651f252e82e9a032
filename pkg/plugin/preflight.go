package plugin

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// missingFeatureError says that the API server drops what a mode needs.
type missingFeatureError struct{ features []string }

func (e *missingFeatureError) Error() string {
	return fmt.Sprintf("the API server drops fields of the ResourceSlice that it needs: enable feature gate %s (on by default since Kubernetes 1.36) on kube-apiserver and kube-scheduler", strings.Join(e.features, ", "))
}

// features are what a pool needs of the API server beyond devices for one claim
// each. Where they are missing, what is stored means something else: a share
// would be a whole card, and a card could be allocated twice.
type features struct{ shares, counters bool }

// featuresOf says what the pool needs.
func featuresOf(resources resourceslice.DriverResources) features {
	var f features
	for _, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			f.counters = f.counters || len(slice.SharedCounters) > 0
			for _, device := range slice.Devices {
				f.shares = f.shares || device.AllowMultipleAllocations != nil
			}
		}
	}
	return f
}

// preflight asks the API server, without storing anything, what it would keep
// of the pool.
func preflight(ctx context.Context, client kubernetes.Interface, nodeName string, resources resourceslice.DriverResources) error {
	for name, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			desired := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "preflight-"},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: v1alpha1.DriverName, NodeName: &nodeName, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				},
			}
			actual, err := client.ResourceV1().ResourceSlices().Create(ctx, desired, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return fmt.Errorf("ask the API server, by a dry run, whether it takes the node's ResourceSlice: %w", err)
			}
			dropped := &resourceslice.DroppedFieldsError{PoolName: name, DesiredSlice: desired, ActualSlice: actual}
			if features := dropped.DisabledFeatures(); len(features) > 0 {
				return &missingFeatureError{features: features}
			}
		}
	}
	return nil
}

package plugin

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// missingFeatureError says that the API server drops what a mode needs.
type missingFeatureError struct{ features []string }

func (e *missingFeatureError) Error() string {
	return fmt.Sprintf("the API server drops fields of the ResourceSlice that it needs: enable feature gate %s (on by default since Kubernetes 1.36) on kube-apiserver and kube-scheduler", strings.Join(e.features, ", "))
}

// preflight asks the API server, without storing anything, what it would keep
// of the pool.
func preflight(ctx context.Context, client kubernetes.Interface, nodeName string, resources resourceslice.DriverResources) error {
	for name, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			desired := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "preflight-"},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: slices.DriverName, NodeName: &nodeName, Devices: slice.Devices,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
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

module github.com/gpushare/dra-driver-gpushare

go 1.26.0

require (
	github.com/NVIDIA/go-nvml v0.13.4-0
	github.com/NVIDIA/nvidia-container-toolkit v1.20.1
	github.com/google/go-cmp v0.7.0
	github.com/urfave/cli/v3 v3.14.0
	google.golang.org/grpc v1.85.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	k8s.io/component-base v0.37.2
	k8s.io/dynamic-resource-allocation v0.37.2
	k8s.io/klog/v2 v2.140.0
	k8s.io/kubelet v0.37.2
	sigs.k8s.io/yaml v1.6.0
	tags.cncf.io/container-device-interface v1.1.1
	tags.cncf.io/container-device-interface/specs-go v1.1.1
)

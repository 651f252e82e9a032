// Package deviceclasses holds the DeviceClasses that the driver is installed
// with. The YAML files are the ones that deployments/manifests applies.
package deviceclasses

import (
	"embed"
	"fmt"
	"io/fs"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *.gpu.aliyun.com.yaml
var files embed.FS

// Modes returns the class of each mode, ordered by name.
func Modes() ([]*resourceapi.DeviceClass, error) {
	names, err := fs.Glob(files, "*.gpu.aliyun.com.yaml")
	if err != nil {
		return nil, err
	}
	classes := make([]*resourceapi.DeviceClass, 0, len(names))
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		c := &resourceapi.DeviceClass{}
		if err := yaml.UnmarshalStrict(data, c); err != nil {
			return nil, fmt.Errorf("embedded DeviceClass %s: %w", name, err)
		}
		classes = append(classes, c)
	}
	return classes, nil
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"path/filepath"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Open returns an NVML with the cards of the machine file, and the root of the node's
// sysfs, which lies beside the file. node tells the cards of two nodes apart if the file
// names none.
func Open(file, node string) (lib gonvml.Interface, sysfs string, err error) {
	spec, err := Load(file)
	if err != nil {
		return nil, "", err
	}
	if spec.Node == "" {
		spec = spec.ForNode(node)
	}
	return spec.NVML(), filepath.Join(filepath.Dir(file), SysDir), nil
}

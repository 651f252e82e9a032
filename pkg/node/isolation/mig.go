// SPDX-License-Identifier: Apache-2.0

package isolation

import "github.com/gpushare/dra-driver-gpushare/pkg/mode"

// migInstance needs no enforcement of ours: the GPU keeps its instances apart, and the NVIDIA driver's
// kernel module lets a process use the instances whose capabilities it can open and no others. A
// container gets those of its own (source: NVIDIA's MIG user guide; not tried on a GPU).
type migInstance struct{ noLimits }

func (migInstance) Name() string { return mode.IsolationMIG }

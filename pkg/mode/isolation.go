// SPDX-License-Identifier: Apache-2.0

package mode

// Isolation is a back end that keeps the users of a GPU apart, as its devices show it.
type Isolation struct {
	// Name is the device attribute "isolation", Level the attribute "isolationLevel" unless the GPU has a stricter one.
	Name, Level string
	// Shares is how many shares of one GPU it keeps apart, 0 if it sets no limit.
	Shares int64
}

// AutoIsolation is the one that a node chooses for a mode where no setting names another: of those that limit all that
// the mode does, that by which most is held. module is whether Alibaba's module is loaded there, which somebody has
// done on purpose, and which limits compute; kernel whether NVIDIA's kernel driver can limit memory on all GPUs.
func AutoIsolation(m Mode, module, kernel bool) Isolation {
	switch {
	case m == MIG:
		return Isolation{"mig", "kernel", 0}
	case m == Share:
		return Isolation{"none", "none", 0}
	case !m.Shared():
		return Isolation{"whole-card", "card", 0}
	case m == MPS:
	case module:
		return Isolation{"cgpu", "kernel", 20}
	case kernel && !m.CountsCores():
		return Isolation{"kernel", "device-memory", 0}
	}
	return Isolation{"mps", "cooperative", 48}
}

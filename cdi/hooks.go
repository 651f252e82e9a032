// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"path/filepath"
	"slices"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// The driver's own hook program, and what stands between the arguments of two hooks
// that one process of it runs: see deployments/container/cdi-hook.
const (
	hookProgram   = "gpu-cdi-hook"
	hookSeparator = "--then"
)

// joinHooks returns the hooks with those that one process of gpu-cdi-hook can run made
// one, in their order. A container waits for each process that is started for it, and
// most of what a hook takes is its process. Hooks of other programs stay as they are,
// among them NVIDIA's own nvidia-cdi-hook, which runs one hook at a time.
func joinHooks(hooks []*specs.Hook) []*specs.Hook {
	var joined []*specs.Hook
	for _, h := range hooks {
		i := slices.IndexFunc(joined, func(j *specs.Hook) bool { return joinable(j, h) })
		if i < 0 {
			joined = append(joined, h)
			continue
		}
		both := *joined[i]
		both.Args = slices.Concat(both.Args, []string{hookSeparator}, h.Args[1:])
		joined[i] = &both
	}
	return joined
}

func joinable(a, b *specs.Hook) bool {
	return filepath.Base(a.Path) == hookProgram && a.Path == b.Path && a.HookName == b.HookName &&
		a.Timeout == nil && b.Timeout == nil && slices.Equal(a.Env, b.Env) && len(a.Args) > 1 && len(b.Args) > 1
}

// splitHooks tells the hooks of gpu-cdi-hook from those of other programs.
func splitHooks(hooks []*specs.Hook) (own, others []*specs.Hook) {
	for _, h := range hooks {
		if filepath.Base(h.Path) == hookProgram {
			own = append(own, h)
		} else {
			others = append(others, h)
		}
	}
	return own, others
}

// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Where a container finds HAMi-core's files.
const (
	hamiLibrary  = "/usr/local/gpushare/libvgpu.so"
	hamiCacheDir = "/usr/local/gpushare/cache"
	// hamiLockDir is built into the library. Releases from before 2026 make a file
	// in it when a program starts CUDA, and wait without end where they cannot
	// (HAMi issue 696).
	hamiLockDir = "/tmp/vgpulock"
	preloadFile = "/etc/ld.so.preload"
)

// hamiBackend loads HAMi-core, a library that the operator supplies, into
// every program of the container; it refuses CUDA allocations beyond the limit.
// Programs that are linked statically, or talk to the driver themselves, never
// load it.
type hamiBackend struct {
	notMPS
	// library is the library on the host, localLibrary the same as this process
	// sees it.
	library, localLibrary string
	// dir is a directory of the plugin's, the same on the host.
	dir string
	mu  *sync.Mutex
}

func (hamiBackend) Name() string                 { return mode.IsolationHAMi }
func (hamiBackend) Validate([]claim.Grant) error { return nil }

func (b hamiBackend) Check(string) error {
	if _, err := os.Stat(b.localLibrary); err != nil {
		return fmt.Errorf("the HAMi-core library that was configured is not on the node: %s: %w", b.library, err)
	}
	return nil
}

// Alone: the library tells GPUs by their number in the container.
func (hamiBackend) Alone(g claim.Grant) string {
	if !limited(g) {
		return ""
	}
	return "HAMi-core tells GPUs by their number in the container, and would take one for another"
}

// Counted is the limit of each GPU.
func (hamiBackend) Counted(grants []claim.Grant) []string {
	if !limited(grants[0]) {
		return nil
	}
	grants = slices.SortedFunc(slices.Values(grants),
		func(a, b claim.Grant) int { return cmp.Compare(a.GPU.Index, b.GPU.Index) })
	var limits []string
	for _, g := range grants {
		limits = append(limits, fmt.Sprintf("%dm", g.CapMiB()))
	}
	return limits
}

func (b hamiBackend) Edits(r Group) (*specs.ContainerEdits, error) {
	if !limited(r.Grants[0]) {
		return &specs.ContainerEdits{}, nil
	}
	edits := &specs.ContainerEdits{
		Env: []string{"CUDA_DEVICE_MEMORY_SHARED_CACHE=" + filepath.Join(hamiCacheDir, "region.cache")},
		Mounts: []*specs.Mount{
			readOnly(b.library, hamiLibrary),
			readOnly(b.preload(), preloadFile),
			ownToContainer(hamiCacheDir),
			ownToContainer(hamiLockDir),
		},
	}
	// The library counts GPUs as CUDA does, and is told to do it in the order of their
	// bus addresses: without that the fastest comes first.
	edits.Env = append(edits.Env, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	for i, limit := range b.Counted(r.Grants) {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d=%s", i, limit))
	}
	if cores := r.Grants[0].CoresPercent; cores > 0 {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", cores))
	}
	return edits, nil
}

func readOnly(host, container string) *specs.Mount {
	return &specs.Mount{HostPath: host, ContainerPath: container, Options: []string{"rbind", "ro", "nosuid"}}
}

// ownToContainer is a directory for the files that the library's copies in one
// container share: empty at each start of the container, gone with it, and nobody
// else's. The library tells processes apart by their number in the container, so in
// the accounting of another container, or of the one before, it would take strangers
// for its own. All users may write, and the directory is not sticky: some kernels keep
// even root from opening another user's file in one that is (fs.protected_regular).
func ownToContainer(path string) *specs.Mount {
	return &specs.Mount{HostPath: "tmpfs", Type: "tmpfs", ContainerPath: path,
		Options: []string{"rw", "nosuid", "nodev", "noexec", "mode=0777", "size=64m"}}
}

// SetUp writes the file that makes programs load the library.
func (b hamiBackend) SetUp(_ context.Context, r Group) error {
	if !limited(r.Grants[0]) {
		return nil
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return fmt.Errorf("make HAMi-core's directory: %w", err)
	}
	if err := b.writePreload(); err != nil {
		return fmt.Errorf("write the file that makes programs load HAMi-core: %w", err)
	}
	return nil
}

// writePreload writes the file once; claims are set up concurrently.
func (b hamiBackend) writePreload() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return atomicfile.Ensure(b.preload(), []byte(hamiLibrary+"\n"), 0o644)
}

func (b hamiBackend) preload() string { return filepath.Join(b.dir, "ld.so.preload") }

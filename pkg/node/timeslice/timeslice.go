// SPDX-License-Identifier: Apache-2.0

// Package timeslice sets for how long a process computes on a GPU before the next one has its turn. NVML has no call
// for that, so NVIDIA's nvidia-smi does it, in the driver root, where it is installed with the libraries it needs.
package timeslice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/hostprogram"
)

const (
	// DefaultPath is where driver packages install nvidia-smi.
	DefaultPath = "/usr/bin/nvidia-smi"
	// smiLimit is how long it may take, which waits for the GPU where nothing keeps the driver loaded.
	smiLimit = 5 * time.Second
)

// SMI is the program of a node's driver.
type SMI struct {
	// Root is the driver root as this process sees it, Path the program as seen from Root.
	Root, Path string

	mu sync.Mutex
	// calls are those for each GPU: one that hangs keeps no other waiting.
	calls map[string]*bounded.Calls
}

// Set sets the GPU's time slice. It is not called twice at a time for one GPU.
func (s *SMI) Set(ctx context.Context, uuid string, slice v1alpha1.TimeSlice) error {
	what := fmt.Sprintf("setting the time slice of GPU %s to %s", uuid, slice)
	_, err := bounded.Try(ctx, s.callsOf(uuid), what, func() (struct{}, error) {
		return struct{}{}, s.run(ctx, "compute-policy", "-i", uuid, "--set-timeslice",
			strconv.Itoa(slices.Index(v1alpha1.TimeSlices(), slice)))
	})
	return err
}

func (s *SMI) callsOf(uuid string) *bounded.Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]*bounded.Calls{}
	}
	if s.calls[uuid] == nil {
		s.calls[uuid] = bounded.New(s.Path, smiLimit+2*hostprogram.End)
	}
	return s.calls[uuid]
}

func (s *SMI) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, smiLimit, fmt.Errorf("it did not end within %s", smiLimit))
	defer cancel()
	said, err := hostprogram.Run(ctx, s.Root, s.Path, args...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the driver root has no %s that runs there: %w: %w", s.Path, gpu.ErrNoTimeSlices, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s: %w: %s", s.Path, strings.Join(args, " "), context.Cause(ctx), said)
	default:
		return fmt.Errorf("%s %s: %w: %w: %s", s.Path, strings.Join(args, " "), err, gpu.ErrNoTimeSlices, said)
	}
}

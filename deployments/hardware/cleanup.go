// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/modes"
)

// putBackLimit is how long it may take to put modes back. A GPU of seven instances takes some ten seconds.
const putBackLimit = time.Minute

// cleanUp ends what a run has started, this one or one that was killed, and puts back what it has changed. It tells of
// both. If it fails, what was unpacked stays for another try.
func (b *bundle) cleanUp(ctx context.Context) (told []string, err error) {
	// An interrupt is no reason to leave the machine changed.
	ctx = context.WithoutCancel(ctx)
	downCtx, cancel := context.WithTimeout(ctx, reserve)
	defer cancel()
	if err = b.cluster(downCtx, "down"); err == nil {
		told = []string{"the cluster was taken down: none of its processes, mounts, control groups and addresses is left"}
	}
	modesCtx, cancelModes := context.WithTimeout(ctx, putBackLimit)
	defer cancelModes()
	back, modesErr := modes.PutBack(modesCtx, b.toPutBack())
	told = append(told, back...)
	if err = errors.Join(err, modesErr); err == nil {
		err = removeUnpacked(b.payload, os.RemoveAll)
	}
	if err != nil {
		err = fmt.Errorf("not all is as it was, ./run down tries again: %w", err)
	}
	return told, err
}

// mark is the file by which ./run knows a directory that it has made.
const mark = ".unpacked-by-gpu-bundle"

// removeUnpacked removes what ./run has unpacked, as its own remove does: who is killed meanwhile leaves the mark by
// which ./run down removes the rest, and no "complete", by which it would start what is gone.
func removeUnpacked(dir string, remove func(path string) error) error {
	if err := remove(filepath.Join(dir, "complete")); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var failed []error
	for _, entry := range entries {
		if entry.Name() != mark {
			failed = append(failed, remove(filepath.Join(dir, entry.Name())))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return remove(dir)
}

// saveLogs packs the logs of the cluster and of its pods, which are written to meanwhile.
func (b *bundle) saveLogs() error {
	out, err := exec.Command("tar", "-czf", b.logs, "--warning=no-file-changed", "-C", b.clusterDir(), "logs",
		filepath.Join("nodes", nodeName, "var/log/pods")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("save the logs: tar: %w: %s", err, out)
	}
	return nil
}

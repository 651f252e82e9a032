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
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/migmode"
)

// handedDown are the controllers that the root of a v2 tree hands down, by the file that
// says so. A cluster adds to them.
func (b *bundle) handedDown() map[string][]string {
	if b.cgroups.v2 == "" {
		return nil
	}
	file := filepath.Join(b.cgroups.v2, "cgroup.subtree_control")
	content, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return map[string][]string{file: strings.Fields(string(content))}
}

// cleanUp ends what the run has started and puts back what it has changed. The error is that the GPU's MIG mode could
// not be put back, which is told, too.
func (b *bundle) cleanUp(ctx context.Context, handed map[string][]string) (told []string, err error) {
	downCtx, cancel := context.WithTimeout(ctx, reserve)
	defer cancel()
	downErr := b.cluster(downCtx, "down")
	err = b.putBackMIG(ctx)
	if err != nil {
		told = append(told, err.Error()+"; ./run down tries again")
	}
	if downErr != nil {
		return append(told, "the cluster could not be taken down, ./run down tries again: "+downErr.Error()), err
	}
	told = append(told, "the cluster was taken down: none of its processes, mounts, control groups and addresses is left")
	for file, before := range handed {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, controller := range strings.Fields(string(content)) {
			if slices.Contains(before, controller) {
				continue
			}
			// Another program may need it by now: then it stays.
			if err := os.WriteFile(file, []byte("-"+controller), 0o644); err != nil {
				told = append(told, fmt.Sprintf("the controller %s stays enabled in %s: %v", controller, file, err))
			}
		}
	}
	if err != nil {
		return told, err // What was unpacked has what is to be put back.
	}
	if removeErr := removeUnpacked(b.payload, os.RemoveAll); removeErr != nil {
		told = append(told, "not all that was unpacked could be removed: "+removeErr.Error())
	}
	return told, nil
}

// takeDown ends what a run that was killed has left, and puts back what it has changed.
func (b *bundle) takeDown(ctx context.Context) error {
	downErr := b.cluster(ctx, "down")
	if err := b.putBackMIG(context.WithoutCancel(ctx)); err != nil {
		return errors.Join(downErr, fmt.Errorf("%w; ./run down tries again", err))
	}
	return errors.Join(downErr, removeUnpacked(b.payload, os.RemoveAll))
}

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

// putBackLimit is how long it may take to put MIG mode back. A GPU of seven instances takes some ten seconds.
const putBackLimit = time.Minute

// putBackMIG is also called by ./run down. Tests that ran to their end have put the mode back.
func (b *bundle) putBackMIG(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, putBackLimit)
	defer cancel()
	return migmode.PutBack(ctx, b.toPutBack())
}

// mark is the file by which ./run knows a directory that it has made.
const mark = ".unpacked-by-gpu-bundle"

// saveLogs packs the logs of the cluster and of its pods, which are written to meanwhile.
func (b *bundle) saveLogs() error {
	out, err := exec.Command("tar", "-czf", b.logs, "--warning=no-file-changed", "-C", b.clusterDir(), "logs",
		filepath.Join("nodes", nodeName, "var/log/pods")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return nil
}

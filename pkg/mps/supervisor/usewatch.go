// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// watchUse tells when what the cards are used for may have changed. Where nothing can be
// watched it tells nothing, and the use is looked at now and then: claims are prepared
// more slowly.
func watchUse(ctx context.Context, dir mps.Dir, gpus gpus) (nudges <-chan struct{}, forget func()) {
	logger := klog.FromContext(ctx)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		logger.Error(err, "What the GPU is used for cannot be watched")
		return nil, func() {}
	}
	forget = func() {
		if err := watcher.Close(); err != nil {
			logger.Error(err, "End watching what the GPU is used for")
		}
	}
	for _, gpu := range gpus {
		files := dir.Files(gpu.uuid)
		if err := errors.Join(os.MkdirAll(files, 0o755), watcher.Add(files)); err != nil {
			logger.Error(err, "What the GPU is used for cannot be watched")
			return nil, forget
		}
	}
	told := make(chan struct{}, 1)
	go func() {
		for event := range watcher.Events {
			if filepath.Base(event.Name) != mps.UseFile {
				continue
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		for err := range watcher.Errors {
			logger.V(2).Info("Watching what the GPU is used for", "err", err)
		}
	}()
	return told, forget
}

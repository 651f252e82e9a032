// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// CheckReady says whether the instance that was given this ReadyFile serves: the
// kubelet has registered it. It is for a probe in the instance's container.
func CheckReady(readyFile string) error {
	_, err := os.Stat(readyFile)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the kubelet has not registered this plugin yet (there is no %s): its log says what it waits for",
			readyFile)
	}
	return err
}

func makeReadyFile(path string) error {
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("tell by the ready file that the plugin serves: %w", err)
	}
	return nil
}

// removeReadyFile removes what an earlier process left.
func removeReadyFile(path string) error {
	if path == "" {
		return nil
	}
	if err := atomicfile.Remove(path); err != nil {
		return fmt.Errorf("remove an old ready file: %w", err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
)

// checkAuditInterval refuses what would do nothing but read.
func checkAuditInterval(interval time.Duration) error {
	if interval == 0 {
		return nil
	}
	return program.AtLeast(time.Second)(interval)
}

// Values of device-plugin-pods.
const (
	WatchPods = "watch"
	noPods    = "none"
)

// checkLabelKey refuses what no label can be called: no node would ever have it.
func checkLabelKey(key string) error {
	if key == "" {
		return nil
	}
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the key of a label: %s", key, strings.Join(problems, "; "))
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"strings"
	"testing"
)

func TestLabelThatNoNodeCanHave(t *testing.T) {
	for _, key := range []string{"", "migrated", "gpu.aliyun.com/migrated"} {
		if err := checkLabelKey(key); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	for _, key := range []string{"gpu.aliyun.com/migrated=true", "a/b/c"} {
		if err := checkLabelKey(key); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

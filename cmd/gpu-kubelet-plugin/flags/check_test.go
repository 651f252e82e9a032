// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestLabelThatNoNodeCanHave(t *testing.T) {
	for _, key := range []string{"", "migrated", "gpu.aliyun.com/migrated"} {
		expect.NoErrorf(t, checkLabelKey(key), "%q", key)
	}
	for _, key := range []string{"gpu.aliyun.com/migrated=true", "a/b/c"} {
		expect.Error(t, checkLabelKey(key), key)
	}
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"encoding/json"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestComputeModeText(t *testing.T) {
	for _, m := range []ComputeMode{ComputeDefault, ComputeExclusiveThread, ComputeProhibited, ComputeExclusiveProcess} {
		text, err := json.Marshal(m)
		expect.NoError(t, err)
		var back ComputeMode
		if err := json.Unmarshal(text, &back); err != nil || back != m {
			t.Errorf("%s reads as %s (%v)", text, back, err)
		}
	}
	var m ComputeMode
	if err := json.Unmarshal([]byte(`"SHARED"`), &m); err == nil {
		t.Errorf("an unknown mode reads as %s", m)
	}
}

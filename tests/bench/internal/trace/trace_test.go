// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Lines as containerd 2.x writes them, with those of another pod between.
const log = `
time="2026-11-22T07:57:03.100000000Z" level=info msg="RunPodSandbox for name:\"a\"  uid:\"u\"  namespace:\"bench\""
time="2026-11-22T07:57:03.150000000Z" level=info msg="RunPodSandbox for name:\"b\"  uid:\"v\"  namespace:\"bench\""
time="2026-11-22T07:57:03.200000000Z" level=info msg="RunPodSandbox for name:\"a\"  uid:\"u\"  namespace:\"bench\" returns sandbox id \"57f1\""
time="2026-11-22T07:57:03.210000000Z" level=info msg="CreateContainer within sandbox \"57f1\" for container name:\"main\""
time="2026-11-22T07:57:03.220000000Z" level=info msg="CreateContainer within sandbox \"57f1\" for name:\"main\" returns container id \"f5e3\""
time="2026-11-22T07:57:03.230000000Z" level=info msg="StartContainer for \"f5e3\""
time="2026-11-22T07:57:03.235000000Z" level=warning msg="StartContainer for \"f5e3\" returns successfully"
not a line of containerd
time="yesterday" level=info msg="StartContainer for \"f5e3\" returns successfully"
time="2026-11-22T07:57:03.240000000Z" level=info msg="StartContainer for \"f5e3\" returns successfully"
time="2026-11-22T07:57:03.250000000Z" level=info msg="StartContainer for \"another\" returns successfully"
`

func TestRead(t *testing.T) {
	pods, err := Read(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	at := func(ms int) time.Time { return time.Date(2026, 11, 22, 7, 57, 3, ms*1_000_000, time.UTC) }
	want := map[string]*Pod{
		"bench/a": {SandboxBegin: at(100), SandboxEnd: at(200), CreateBegin: at(210), CreateEnd: at(220),
			StartBegin: at(230), StartEnd: at(240)},
		"bench/b": {SandboxBegin: at(150)},
	}
	if diff := cmp.Diff(want, pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestReadEndsAtALineThatIsTooLong(t *testing.T) {
	if _, err := Read(strings.NewReader(strings.Repeat("x", 2<<20))); err == nil {
		t.Error("no error")
	}
}

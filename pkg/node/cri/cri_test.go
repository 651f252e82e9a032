// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cri"
)

// runtime stands for a container runtime.
type runtime struct {
	criv1.UnimplementedRuntimeServiceServer
	config string
}

func (r runtime) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.1.4"}, nil
}

func (r runtime) Status(_ context.Context, request *criv1.StatusRequest) (*criv1.StatusResponse, error) {
	response := &criv1.StatusResponse{}
	if request.GetVerbose() && r.config != "" {
		response.Info = map[string]string{"golang": `"go1.26"`, "config": r.config}
	}
	return response, nil
}

// serve serves a runtime and returns its socket.
func serve(t *testing.T, r criv1.RuntimeServiceServer) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", socket)
	expect.NoError(t, err)
	server := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(server, r)
	go server.Serve(listener) //nolint:errcheck // It ends with the test.
	t.Cleanup(server.Stop)
	return socket
}

func TestAsk(t *testing.T) {
	on := cri.Runtime{SpecDirs: []string{"/etc/cdi"}}
	off := cri.Runtime{CDIDisabled: true, SpecDirs: on.SpecDirs}
	for name, test := range map[string]struct {
		config string
		want   cri.Runtime
	}{
		"containerd 1.7":             {`{"enableCDI":false,"cdiSpecDirs":["/etc/cdi"]}`, off},
		"containerd 2.0":             {`{"enableCDI":true,"cdiSpecDirs":["/etc/cdi"],"containerd":{}}`, on},
		"containerd 2.4":             {`{"cdiSpecDirs":["/etc/cdi"]}`, on},
		"one that says less":         {`{"sandboxImage":"pause"}`, cri.Runtime{}},
		"one that says nothing":      {"", cri.Runtime{}},
		"one that looks at no specs": {`{"cdiSpecDirs":[]}`, cri.Runtime{SpecDirs: []string{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := cri.Ask(t.Context(), serve(t, runtime{config: test.config}))
			test.want.Name = "containerd://2.1.4"
			if diff := expect.Diff(test.want, got); err != nil || diff != nil {
				t.Errorf("%v %v", err, diff)
			}
		})
	}
}

func TestAskSaysWhomItAsked(t *testing.T) {
	for name, socket := range map[string]string{
		"nobody there":    filepath.Join(t.TempDir(), "none.sock"),
		"no CRI":          serve(t, criv1.UnimplementedRuntimeServiceServer{}),
		"no JSON":         serve(t, runtime{config: "containerd"}),
		"another meaning": serve(t, runtime{config: `{"cdiSpecDirs":"/etc/cdi"}`}),
	} {
		if _, err := cri.Ask(t.Context(), socket); err == nil || !strings.Contains(err.Error(), socket) {
			t.Errorf("%s: error %v, want it to name %s", name, err, socket)
		}
	}
}

func TestFinds(t *testing.T) {
	// As on most nodes, where /var/run is a link to /run.
	same := func(a, b string) bool { return strings.TrimPrefix(a, "/var") == strings.TrimPrefix(b, "/var") }
	dirs := []string{"/etc/cdi", "/run/cdi"}
	for name, test := range map[string]struct {
		runtime cri.Runtime
		dir     string
		want    []string
	}{
		"one of them": {cri.Runtime{SpecDirs: dirs}, "/run/cdi", nil},
		"by a link":   {cri.Runtime{SpecDirs: dirs}, "/var/run/cdi", nil},
		"none of them": {cri.Runtime{Name: "containerd://1.7", SpecDirs: dirs}, "/opt/cdi", []string{
			"CDI_DIR", "containerd://1.7 looks for CDI specs in /etc/cdi, /run/cdi, and not in /opt/cdi", "cdi_spec_dirs",
		}},
		"it looks in none":    {cri.Runtime{SpecDirs: []string{}}, "/run/cdi", []string{"and not in /run/cdi"}},
		"it does not say":     {cri.Runtime{}, "/opt/cdi", nil},
		"CDI is switched off": {cri.Runtime{CDIDisabled: true, SpecDirs: dirs}, "/run/cdi", []string{"enable_cdi = true"}},
	} {
		err := test.runtime.Finds(test.dir, same)
		if (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range test.want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want it to say %q", name, err, text)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package driver runs a DRA driver as a process of its own, without a kubelet:
// the benchmark asks in the kubelet's place.
package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/process"
)

// Driver is a program that can be started, any number of times, on the same
// directory.
type Driver struct {
	// Name is the DRA driver's name.
	Name    string
	Program string
	// Args are arguments besides those that name the directories.
	Args []string
	// Flags are the flags that name the directories; if empty, those of this repository's drivers.
	Flags Flags
	// Dir holds all that the driver writes, its log and its sockets. A socket's
	// path must stay below 108 bytes.
	Dir string
}

// Flags are the names of a driver's flags for the kubelet's directories and that of CDI.
type Flags struct{ Plugins, Registrar, CDI string }

// Process is a running driver.
type Process struct {
	*process.Process
	driver Driver
}

// Start starts the driver. It is killed if the benchmark dies.
func (d Driver) Start() (*Process, error) {
	flags := d.Flags
	if flags == (Flags{}) {
		flags = Flags{Plugins: "--plugins-dir", Registrar: "--registrar-dir", CDI: "--cdi-dir"}
	}
	args := d.Args
	for _, of := range [][2]string{{flags.Plugins, d.plugins()}, {flags.Registrar, filepath.Join(d.Dir, "registry")},
		{flags.CDI, filepath.Join(d.Dir, "cdi")}} {
		if err := os.MkdirAll(of[1], 0o755); err != nil {
			return nil, fmt.Errorf("start driver %s: %w", d.Name, err)
		}
		args = append(args[:len(args):len(args)], of[0], of[1])
	}
	started, err := process.Start(d.Log(), d.Program, args...)
	if err != nil {
		return nil, fmt.Errorf("start driver %s: %w", d.Name, err)
	}
	return &Process{started, d}, nil
}

// Log returns the path of the file with all that the driver's processes print.
func (d Driver) Log() string { return filepath.Join(d.Dir, "log") }

func (d Driver) plugins() string { return filepath.Join(d.Dir, "plugins") }

// Connect waits until the driver listens and connects.
func (p *Process) Connect(ctx context.Context) (*Socket, error) {
	path := filepath.Join(p.driver.plugins(), p.driver.Name, "dra.sock")
	// A driver that was killed leaves its socket behind: only one that accepts
	// tells of a driver that is there.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			if err := conn.Close(); err != nil {
				return nil, err
			}
			return dial(path)
		}
		select {
		case <-p.Exited:
			return nil, p.Gone()
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to driver %s: %w: %w: see %s", p.driver.Name, context.Cause(ctx), err,
				p.driver.Log())
		case <-tick.C:
		}
	}
}

// Socket is a connection to a driver, like the kubelet's.
type Socket struct {
	conn   *grpc.ClientConn
	client drapb.DRAPluginClient
}

func dial(path string) (*Socket, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return &Socket{conn: conn, client: drapb.NewDRAPluginClient(conn)}, nil
}

// Close ends the connection.
func (s *Socket) Close() error { return s.conn.Close() }

// Prepare asks for one claim's devices and says how long the answer took.
func (s *Socket) Prepare(ctx context.Context, claim *drapb.Claim) (time.Duration, error) {
	start := time.Now()
	response, err := s.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	took := time.Since(start)
	answer := response.GetClaims()[claim.Uid]
	if err == nil && answer.GetError() == "" && len(answer.GetDevices()) == 0 {
		err = errors.New("the answer has no devices")
	}
	return took, failure("NodePrepareResources", claim, err, answer.GetError())
}

// Unprepare gives one claim's devices back and says how long the answer took.
func (s *Socket) Unprepare(ctx context.Context, claim *drapb.Claim) (time.Duration, error) {
	start := time.Now()
	response, err := s.client.NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	took := time.Since(start)
	return took, failure("NodeUnprepareResources", claim, err, response.GetClaims()[claim.Uid].GetError())
}

// failure returns the error of a call, or the one in its answer.
func failure(call string, claim *drapb.Claim, err error, answered string) error {
	if err == nil && answered != "" {
		err = errors.New(answered)
	}
	if err != nil {
		return fmt.Errorf("%s of claim %s/%s: %w", call, claim.Namespace, claim.Name, err)
	}
	return nil
}

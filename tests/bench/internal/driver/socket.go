// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Socket is a connection to a driver as the kubelet has one.
type Socket struct {
	conn   *grpc.ClientConn
	client drapb.DRAPluginClient
}

// Connect waits until the driver listens and connects.
func (p *Process) Connect(ctx context.Context) (*Socket, error) {
	path := p.driver.socket()
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
		case <-p.exited:
			return nil, p.gone()
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to driver %s: %w: %w: see %s", p.driver.Name, context.Cause(ctx), err,
				p.driver.Log())
		case <-tick.C:
		}
	}
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
	if err == nil {
		answer := response.Claims[claim.Uid]
		switch {
		case answer == nil:
			err = errors.New("the answer does not name the claim")
		case answer.Error != "":
			err = errors.New(answer.Error)
		case len(answer.Devices) == 0:
			err = errors.New("the answer has no devices")
		}
	}
	if err != nil {
		return took, fmt.Errorf("NodePrepareResources of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return took, nil
}

// Unprepare gives one claim's devices back and says how long the answer took.
func (s *Socket) Unprepare(ctx context.Context, claim *drapb.Claim) (time.Duration, error) {
	start := time.Now()
	response, err := s.client.NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	took := time.Since(start)
	if err == nil && response.Claims[claim.Uid].GetError() != "" {
		err = errors.New(response.Claims[claim.Uid].Error)
	}
	if err != nil {
		return took, fmt.Errorf("NodeUnprepareResources of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return took, nil
}

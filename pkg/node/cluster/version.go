// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
)

// dynamicSince is the Kubernetes that mode dynamic needs. Before it, the
// scheduler goes through the counters of all nodes for each node, which takes
// 100 ms a node in a cluster of 1000 (kubernetes/kubernetes pull request 138917).
const dynamicSince = "1.37.0"

// Version remembers that the cluster is recent enough.
type Version struct{ recent bool }

// TooOldForDynamic says why the cluster is too old for mode dynamic, nil if it is
// not. It asks again until the cluster is recent enough: clusters are upgraded.
func (c *Version) TooOldForDynamic(ctx context.Context, client discovery.DiscoveryInterface) (tooOld, err error) {
	if c.recent {
		return nil, nil
	}
	info, err := discovery.ToServerVersionInterfaceWithContext(client).ServerVersionWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the version of Kubernetes, which has to be %s for mode dynamic: %w", dynamicSince, err)
	}
	version, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("read the version of Kubernetes, which has to be %s for mode dynamic: %w", dynamicSince, err)
	}
	if c.recent = version.AtLeast(utilversion.MustParseGeneric(dynamicSince)); !c.recent {
		return fmt.Errorf("mode dynamic needs Kubernetes %s, this is %s: upgrade the cluster, or set the label to another "+
			"mode", dynamicSince, info.GitVersion), nil
	}
	return nil, nil
}

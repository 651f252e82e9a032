// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// NodeFile is a path of a node as the tests reach it: NodeFile("n1", "run/cdi").
func (c *Cluster) NodeFile(node string, path ...string) string {
	if c.Dir == "" {
		return filepath.Join(append([]string{"/"}, path...)...)
	}
	return filepath.Join(append([]string{c.Dir, "nodes", node}, path...)...)
}

// Socket names a socket of a node until the test ends. A socket's path has 107 bytes
// at most, and the way through the cluster's directory may be longer.
func (c *Cluster) Socket(t *testing.T, node string, path ...string) string {
	t.Helper()
	name := c.NodeFile(node, path...)
	dir, err := os.Open(filepath.Dir(name))
	expect.NoError(t, err)
	t.Cleanup(func() {
		if err := dir.Close(); err != nil {
			t.Errorf("close the directory of socket %s: %v", name, err)
		}
	})
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name))
}

// ClaimsDir is where the plugin of a node keeps one file per claim.
func (c *Cluster) ClaimsDir(node string) string {
	return c.NodeFile(node, "var/lib/kubelet/plugins", v1alpha1.DriverName, "claims")
}

// CDIDir is where the plugin of a node writes CDI specs.
func (c *Cluster) CDIDir(node string) string {
	return c.NodeFile(node, "run/cdi")
}

// NodeNames lists the nodes that have a directory, in order.
func (c *Cluster) NodeNames() ([]string, error) {
	if c.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(c.Dir, "nodes"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Records reads what the plugin of a node keeps of its claims. A file that is
// being removed meanwhile is left out.
func (c *Cluster) Records(node string) ([]state.Record, error) {
	uids, err := c.StateClaims(node)
	if err != nil {
		return nil, err
	}
	var records []state.Record
	for _, uid := range uids {
		path := filepath.Join(c.ClaimsDir(node), string(uid)+".json")
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var record state.Record
		if err := json.Unmarshal(content, &record); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		records = append(records, record)
	}
	return records, nil
}

// StateClaims lists the claims for which the plugin of a node keeps a state file,
// readable or not.
func (c *Cluster) StateClaims(node string) ([]types.UID, error) {
	paths, err := filepath.Glob(filepath.Join(c.ClaimsDir(node), "*.json"))
	if err != nil {
		return nil, err
	}
	uids := make([]types.UID, 0, len(paths))
	for _, path := range paths {
		uids = append(uids, types.UID(strings.TrimSuffix(filepath.Base(path), ".json")))
	}
	return uids, nil
}

// CDIClaims lists the claims for which a node has a CDI spec of the driver.
func (c *Cluster) CDIClaims(node string) ([]types.UID, error) {
	return cdi.Dir(c.CDIDir(node)).Claims()
}

// leftovers says what a node still holds of the claims that are asked for.
func (c *Cluster) leftovers(node string, asked func(types.UID) bool) error {
	files, err := c.StateClaims(node)
	if err != nil {
		return err
	}
	specs, err := c.CDIClaims(node)
	if err != nil {
		return err
	}
	var left []string
	for _, uid := range files {
		if asked(uid) {
			left = append(left, fmt.Sprintf("state file of claim %s", uid))
		}
	}
	for _, uid := range specs {
		if asked(uid) {
			left = append(left, fmt.Sprintf("CDI spec of claim %s", uid))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left on node %s: %s", node, strings.Join(left, ", "))
	}
	return nil
}

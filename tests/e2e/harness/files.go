package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// NodeFile is a path of a node as the tests reach it: NodeFile("n1", "run/cdi").
func (c *Cluster) NodeFile(node string, path ...string) string {
	return filepath.Join(append([]string{c.Dir, "nodes", node}, path...)...)
}

// ClaimsDir is where the plugin of a node keeps one file per claim.
func (c *Cluster) ClaimsDir(node string) string {
	return c.NodeFile(node, "var/lib/kubelet/plugins", devslices.DriverName, "claims")
}

// CDIDir is where the plugin of a node writes CDI specs.
func (c *Cluster) CDIDir(node string) string {
	return c.NodeFile(node, "run/cdi")
}

// NodeNames lists the nodes that have a directory, in order.
func (c *Cluster) NodeNames() ([]string, error) {
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
	paths, err := filepath.Glob(filepath.Join(c.ClaimsDir(node), "*.json"))
	if err != nil {
		return nil, err
	}
	var records []state.Record
	for _, path := range paths {
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

// CDIClaims lists the claims for which a node has a CDI spec of the driver.
func (c *Cluster) CDIClaims(node string) ([]types.UID, error) {
	return cdi.Dir(c.CDIDir(node)).Claims()
}

// leftovers says what a node still holds of a namespace's claims, and which CDI
// specs belong to no claim at all.
func (c *Cluster) leftovers(node, namespace string) error {
	// In this order: a spec goes before the record that stands for it.
	specs, err := c.CDIClaims(node)
	if err != nil {
		return err
	}
	records, err := c.Records(node)
	if err != nil {
		return err
	}
	var left []string
	for _, record := range records {
		specs = slices.DeleteFunc(specs, func(uid types.UID) bool { return uid == record.UID })
		if record.Namespace == namespace {
			left = append(left, fmt.Sprintf("state file of claim %s (%s)", record.Name, record.UID))
		}
	}
	for _, uid := range specs {
		left = append(left, fmt.Sprintf("CDI spec of claim %s, which has no state file", uid))
	}
	if len(left) > 0 {
		return fmt.Errorf("left on node %s: %s", node, strings.Join(left, ", "))
	}
	return nil
}

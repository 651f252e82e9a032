// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// LogLine is a line that a container printed, and when.
type LogLine struct {
	At   time.Time
	Text string
}

// ContainerLog is what one start of a container printed. Its lines come from within
// the container's life.
type ContainerLog struct {
	Pod             string
	UID             types.UID
	Container, Node string
	Lines           []LogLine
}

// ContainerLogs reads what all containers of the namespace's pods have printed, from
// the nodes' files: of pods that are deleted there is nothing any more.
func (n *Namespace) ContainerLogs() ([]ContainerLog, error) {
	nodes, err := n.NodeNames()
	if err != nil {
		return nil, err
	}
	var logs []ContainerLog
	for _, node := range nodes {
		paths, err := filepath.Glob(n.NodeFile(node, "var/log/pods", n.Name+"_*", "*", "*.log"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			log, err := readContainerLog(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			log.Node = node
			logs = append(logs, log)
		}
	}
	return logs, nil
}

// readContainerLog reads NAMESPACE_POD_UID/CONTAINER/RESTARTS.log. Each line of it
// begins with its time, the stream, and F, or P where more of the line follows.
func readContainerLog(path string) (ContainerLog, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return ContainerLog{}, err
	}
	dir := filepath.Dir(path)
	pod := strings.Split(filepath.Base(filepath.Dir(dir)), "_")
	if len(pod) != 3 {
		return ContainerLog{}, fmt.Errorf("%s is not the log of a pod", path)
	}
	log := ContainerLog{Pod: pod[1], UID: types.UID(pod[2]), Container: filepath.Base(dir)}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) != 4 {
			return ContainerLog{}, fmt.Errorf("%s: line %q is not of a container's log", path, line)
		}
		at, err := time.Parse(time.RFC3339Nano, fields[0])
		if err != nil {
			return ContainerLog{}, fmt.Errorf("%s: %w", path, err)
		}
		log.Lines = append(log.Lines, LogLine{At: at, Text: fields[3]})
	}
	return log, nil
}

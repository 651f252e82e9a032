// SPDX-License-Identifier: Apache-2.0

package report

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// NodeEvents reports on the node, where "kubectl describe node" shows it. What
// was reported under a reason is not repeated until it changes or is cleared.
type NodeEvents interface {
	// Warn tells that something is not as it should be, Normal that something is worth
	// knowing.
	Warn(reason, message string)
	Normal(reason, message string)
	// Clear says that what was told under the reason does not hold any more.
	Clear(reason string)
}

type recordedEvents struct {
	reporter *Reporter
	node     corev1.ObjectReference
	// hostRoot is where this process sees the host's root directory.
	hostRoot string
}

func NewNodeEvents(recorder record.EventRecorder, node *corev1.Node, hostRoot string) NodeEvents {
	return recordedEvents{reporter: New(recorder, clock.RealClock{}), node: Node(node.Name, node.UID), hostRoot: hostRoot}
}

// Warn implements [NodeEvents].
func (e recordedEvents) Warn(reason, message string) {
	e.reporter.Warn(e.node, reason, onHost(message, e.hostRoot))
}

// Normal implements [NodeEvents].
func (e recordedEvents) Normal(reason, message string) {
	e.reporter.Normal(e.node, reason, onHost(message, e.hostRoot))
}

// Clear implements [NodeEvents].
func (e recordedEvents) Clear(reason string) { e.reporter.Clear(e.node.UID, reason) }

// onHost makes the paths in a message those of the host: whoever reads the node's Events
// knows nothing of the container.
func onHost(message, hostRoot string) string {
	root := strings.TrimRight(hostRoot, "/")
	if root == "" {
		return message
	}
	// A path begins at the text's beginning, or after what is no part of a path.
	path := regexp.MustCompile(`(^|[^\w./-])` + regexp.QuoteMeta(root) + `(/|$|[^\w.-])`)
	return path.ReplaceAllStringFunc(message, func(found string) string {
		before, after, _ := strings.Cut(found, root)
		if after != "/" {
			after = "/" + after
		}
		return before + after
	})
}

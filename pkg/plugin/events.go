package plugin

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// nodeEvents reports on the node, where "kubectl describe node" shows it. What
// was reported under a reason is not repeated until it changes or is cleared.
type nodeEvents interface {
	warn(reason, message string)
	normal(reason, message string)
	clear(reason string)
}

type recordedEvents struct {
	reporter *report.Reporter
	node     corev1.ObjectReference
	// hostRoot is where this process sees the host's root directory.
	hostRoot string
}

func newNodeEvents(recorder record.EventRecorder, node *corev1.Node, hostRoot string) recordedEvents {
	return recordedEvents{reporter: report.New(recorder, clock.RealClock{}), node: report.Node(node.Name, node.UID), hostRoot: hostRoot}
}

func (e recordedEvents) warn(reason, message string) {
	e.reporter.Warn(e.node, reason, onHost(message, e.hostRoot))
}

func (e recordedEvents) normal(reason, message string) {
	e.reporter.Normal(e.node, reason, onHost(message, e.hostRoot))
}

func (e recordedEvents) clear(reason string) { e.reporter.Clear(e.node.UID, reason) }

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

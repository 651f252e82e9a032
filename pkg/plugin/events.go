package plugin

import (
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
}

func newNodeEvents(recorder record.EventRecorder, node *corev1.Node) recordedEvents {
	return recordedEvents{reporter: report.New(recorder, clock.RealClock{}), node: report.Node(node.Name, node.UID)}
}

func (e recordedEvents) warn(reason, message string)   { e.reporter.Warn(e.node, reason, message) }
func (e recordedEvents) normal(reason, message string) { e.reporter.Normal(e.node, reason, message) }
func (e recordedEvents) clear(reason string)           { e.reporter.Clear(e.node.UID, reason) }

// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Most is how long a message may be, in bytes: what the API of Events itself allows
// (events.k8s.io/v1). Values that others write would otherwise fill the API server.
const Most = 1024

// Bounded returns a recorder of messages that are at most so long and on one line, with
// what is not printed escaped.
func Bounded(r record.EventRecorder) record.EventRecorder { return bounded{r} }

type bounded struct{ recorder record.EventRecorder }

func (b bounded) Event(object runtime.Object, eventType, reason, message string) {
	b.recorder.Event(object, eventType, reason, text.Bound(message, Most))
}

func (b bounded) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	b.Event(object, eventType, reason, fmt.Sprintf(format, args...))
}

func (b bounded) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string,
	args ...any) {
	b.recorder.AnnotatedEventf(object, annotations, eventType, reason, "%s",
		text.Bound(fmt.Sprintf(format, args...), Most))
}

var _ record.EventRecorder = bounded{}

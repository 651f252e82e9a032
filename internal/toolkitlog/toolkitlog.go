// SPDX-License-Identifier: Apache-2.0

// Package toolkitlog lets NVIDIA's container toolkit log through klog.
package toolkitlog

import (
	"fmt"

	"k8s.io/klog/v2"
)

// Logger has the methods that the toolkit's packages want of a logger. All but
// errors are details here: the toolkit warns about each optional file that a
// driver does not have.
type Logger struct{ logger klog.Logger }

// New returns a Logger that writes to logger.
func New(logger klog.Logger) Logger {
	return Logger{logger: logger.WithName("nvidia-container-toolkit").WithCallDepth(1)}
}

// Errorf logs an error.
func (l Logger) Errorf(format string, args ...any) {
	l.logger.Error(nil, fmt.Sprintf(format, args...))
}

// Warningf logs at level 4.
func (l Logger) Warningf(format string, args ...any) { l.detail(4, format, args) }

// Infof logs at level 5.
func (l Logger) Infof(format string, args ...any) { l.detail(5, format, args) }

// Debugf logs at level 6.
func (l Logger) Debugf(format string, args ...any) { l.detail(6, format, args) }

// Tracef logs at level 7.
func (l Logger) Tracef(format string, args ...any) { l.detail(7, format, args) }

func (l Logger) detail(level int, format string, args []any) {
	if v := l.logger.V(level); v.Enabled() {
		v.WithCallDepth(1).Info(fmt.Sprintf(format, args...))
	}
}

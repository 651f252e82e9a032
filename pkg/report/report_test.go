// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

func TestEventsAreNotRepeatedWhileTheyHold(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	reporter := report.New(recorder, clock)
	node, other := corev1.ObjectReference{Kind: "Node", UID: "1"}, corev1.ObjectReference{Kind: "Node", UID: "2"}
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"first", func() { reporter.Warn(node, "R", "a") }, "Warning R a"},
		{"again", func() { reporter.Warn(node, "R", "a") }, ""},
		{"another node", func() { reporter.Warn(other, "R", "a") }, "Warning R a"},
		{"another reason", func() { reporter.Normal(node, "S", "a") }, "Normal S a"},
		{"another message", func() { reporter.Warn(node, "R", "b") }, "Warning R b"},
		{"after it was cleared", func() { reporter.Clear(node.UID, "R"); reporter.Warn(node, "R", "b") }, "Warning R b"},
		{"after the node was forgotten", func() { reporter.Forget(node.UID); reporter.Normal(node, "S", "a") }, "Normal S a"},
		{"soon", func() { clock.SetTime(clock.Now().Add(29 * time.Minute)); reporter.Normal(node, "S", "a") }, ""},
		{"before it is forgotten", func() { clock.SetTime(clock.Now().Add(time.Minute)); reporter.Normal(node, "S", "a") },
			"Normal S a"},
	} {
		step.do()
		got := ""
		select {
		case got = <-recorder.Events:
		default:
		}
		expect.Equal(t, step.want, got, "%s", step.what)
	}
}

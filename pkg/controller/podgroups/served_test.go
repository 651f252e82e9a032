// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// slow is an API server that answers when it is told to.
type slow struct{ asked, answer chan struct{} }

func (s slow) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	s.asked <- struct{}{}
	<-s.answer
	return nil, apierrors.NewNotFound(schedulingapi.Resource(""), "")
}

// While one gang waits for what the API server serves, the others go on by what it said last.
func TestASlowAnswerHoldsUpNoOtherGang(t *testing.T) {
	clock, api := clocktesting.NewFakeClock(time.Unix(0, 0)), slow{make(chan struct{}), make(chan struct{})}
	k := &reconciler{Config: Config{Discovery: api, Clock: clock}}
	ask := func() chan error {
		done := make(chan error, 1)
		go func() {
			_, err := k.isServed()
			done <- err
		}()
		<-api.asked
		return done
	}
	first := ask()
	api.answer <- struct{}{}
	expect.NoError(t, <-first)
	clock.Step(2 * lookAgain)
	second := ask()
	if !k.mu.TryLock() {
		t.Fatal("what all gangs need is locked while the API server is asked")
	}
	k.mu.Unlock()
	if served, err := k.isServed(); served || err != nil {
		t.Errorf("meanwhile: %v, %v", served, err)
	}
	api.answer <- struct{}{}
	expect.NoError(t, <-second)
}

// An administrator enables PodGroups, and the first gang comes before it is asked for them again.
func TestAGangThatComesBeforeItIsKnownThatPodGroupsAreServed(t *testing.T) {
	run(t, false, nil, func(s *site) {
		s.serve(true)
		s.create(member("a", "2"))
		s.has(0)
		s.after(lookAgain + time.Second)
		s.has(2)
	})
}

// What is told to pods of a gang is what helps: that they are created again does not, once PodGroups are gone.
func TestPodGroupsThatAreServedNoMore(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.create(member("a", "2"))
		s.has(2)
		s.serve(false)
		s.after(lookAgain + time.Second)
		s.create(member("b", "2", withoutGroup, func(p *corev1.Pod) { p.Labels[ack.LabelPodGroup] = "other" }))
		if events := s.said(); len(events) != 1 || !strings.Contains(events[0], "GenericWorkload") {
			s.Errorf("told %q, want what to enable", events)
		}
	})
}

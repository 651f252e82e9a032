// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"testing"
	"time"

	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
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
	k := &keeper{Config: Config{Discovery: api, Clock: clock}}
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
	if err := <-first; err != nil {
		t.Fatal(err)
	}
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
	if err := <-second; err != nil {
		t.Fatal(err)
	}
}

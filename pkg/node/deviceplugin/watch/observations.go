// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// checkpointFile keeps what pods that a device plugin gave devices to were first seen with.
type checkpointFile string

// checkpointContent is what the file holds.
type checkpointContent struct {
	Pods deviceplugin.Observations `json:"pods"`
}

// damaged is where a file lies that could not be read. As long as there is none in its
// place, what it said is lost.
func (f checkpointFile) damaged() string { return string(f) + ".damaged" }

func (f checkpointFile) load() (deviceplugin.Observations, error) {
	data, err := os.ReadFile(string(f))
	if err != nil {
		return nil, err
	}
	var content checkpointContent
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("decode %s: %w", string(f), err)
	}
	if content.Pods == nil {
		return nil, fmt.Errorf("decode %s: it lacks the list of pods", string(f))
	}
	return content.Pods, nil
}

func (f checkpointFile) store(s deviceplugin.Observations) error {
	data, err := json.Marshal(checkpointContent{Pods: s})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(string(f), data, 0o600, true); err != nil {
		return fmt.Errorf("remember what pods without a claim were first seen with: %w", err)
	}
	return nil
}

// observations know what the node's pods were first seen with, also by earlier processes.
type observations struct {
	file checkpointFile
	// locked calls do while no other process of the node writes the file.
	locked func(ctx context.Context, do func() error) error

	mu   sync.Mutex
	seen deviceplugin.Observations
	left time.Time
	// lost says that what earlier processes saw is lost. It does until the file is
	// written anew; all marks that the pods of the first list are all there.
	lost, all bool
	// changed says that the file has to be written.
	changed bool
}

// openObservations reads the file. Where it cannot be read, it is set aside, and damage says
// so: of the pods that are there it is not known any more what they were seen with.
func openObservations(file checkpointFile, left time.Time, locked func(context.Context, func() error) error) (
	s *observations, damage, err error) {
	s = &observations{file: file, locked: locked, seen: deviceplugin.Observations{}, left: left}
	kept, err := file.load()
	switch {
	case err == nil:
		s.seen = kept
		return s, nil, nil
	case errors.Is(err, fs.ErrNotExist):
		if _, statErr := os.Stat(file.damaged()); statErr != nil {
			return s, nil, nil
		}
	default:
		if err := os.Rename(string(file), file.damaged()); err != nil {
			return nil, nil, fmt.Errorf("set the damaged file aside: %w", err)
		}
	}
	s.lost = true
	return s, fmt.Errorf("what pods of device plugins were first seen with cannot be read, and lies in %s now: shares "+
			"and linked GPUs of those that run "+
			"count on every GPU until they end, for their annotations may have been changed meanwhile: %w", file.damaged(), err),
		nil
}

// observe notes a pod as the API server has it. It returns whether that is another observation of
// it than before.
func (s *observations) observe(pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.seen[pod.UID]
	if s.lost && !s.all && !known && deviceplugin.Holds(pod) {
		s.seen[pod.UID] = deviceplugin.Observation{Namespace: pod.Namespace, Name: pod.Name, Lost: true}
		return true
	}
	s.seen.Observe(pod)
	after, holds := s.seen[pod.UID]
	s.changed = s.changed || !holds && before.Devices != nil
	return known != holds || !reflect.DeepEqual(before, after)
}

// forget is for a pod that is gone.
func (s *observations) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = s.changed || s.seen[uid].Devices != nil
	delete(s.seen, uid)
}

// prune is told all pods of the node, once all have been seen: others are gone.
func (s *observations) prune(pods []*corev1.Pod) {
	there := map[types.UID]bool{}
	for _, pod := range pods {
		there[pod.UID] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = true
	for uid := range s.seen {
		if !there[uid] {
			delete(s.seen, uid)
			s.changed = true
		}
	}
}

// setLeft sets when the last device plugin left; the zero time where one may serve.
func (s *observations) setLeft(left time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = left
}

// needKubelet says whether the kubelet may have something to tell of one of the pods.
func (s *observations) needKubelet(pods []*corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range pods {
		if s.seen.NeedKubelet(pod) {
			return true
		}
	}
	return false
}

// reserved is what the pods hold of the GPUs. What the kubelet says of them is noted.
func (s *observations) reserved(pods []*corev1.Pod, n deviceplugin.Node) deviceplugin.Reserved {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.seen.AddDevices(pods, n.Kubelet)
	s.changed = s.changed || news || s.lost && s.all && n.Kubelet.Err == nil
	n.Left, n.Observed = s.left, s.seen
	return deviceplugin.Of(pods, n)
}

// store writes the file, if need be. What another process wrote before counts as seen
// first.
func (s *observations) store(ctx context.Context) error {
	s.mu.Lock()
	changed := s.changed
	s.mu.Unlock()
	if !changed {
		return nil
	}
	return s.locked(ctx, func() error {
		earlier, err := s.file.load()
		if err != nil {
			earlier = nil // it is about to be there
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		kept := deviceplugin.Observations{}
		for uid, observed := range s.seen {
			if first, ok := earlier[uid]; ok {
				s.seen[uid], observed = first, first
			}
			if observed.Devices != nil {
				kept[uid] = observed
			}
		}
		if err := s.file.store(kept); err != nil {
			return err
		}
		s.changed, s.lost = false, false
		return nil
	})
}

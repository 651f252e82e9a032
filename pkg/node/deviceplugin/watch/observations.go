// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// checkpointFile keeps what pods that a device plugin gave devices to were first seen with. As long as a damaged one is
// set aside and there is none in its place, what it said is lost.
type checkpointFile = statefile.File[checkpointContent]

type checkpointContent struct {
	Pods deviceplugin.Observations `json:"pods"`
}

func newCheckpointFile(path string) checkpointFile {
	return checkpointFile{Path: path, Synced: true, Check: func(c checkpointContent) error {
		if c.Pods == nil {
			return errors.New("it lacks the list of pods")
		}
		return nil
	}}
}

// observations know what the node's pods were first seen with, also by earlier processes.
type observations struct {
	file checkpointFile
	// lock keeps other processes of the node from writing the file.
	lock func(ctx context.Context) (unlock func(), err error)

	mu sync.Mutex
	// seen also has deleted pods that have devices and still run.
	seen deviceplugin.Observations
	left time.Time
	// lost says that what earlier processes saw is lost. It does until the file is
	// written again; all marks that the pods of the first list are all there.
	lost, all bool
	// changed says that the file has to be written.
	changed bool
}

// openObservations reads the file. Where it cannot be read, it is set aside, and damage says
// so: of the pods that are there it is not known any more what they were seen with.
func openObservations(
	file checkpointFile, left time.Time, lock func(context.Context) (func(), error),
) (s *observations, damage, err error) {
	s = &observations{file: file, lock: lock, seen: deviceplugin.Observations{}, left: left}
	kept, found, err := file.Load()
	switch {
	case err != nil:
		if err := file.SetAside(); err != nil {
			return nil, nil, err
		}
	case found:
		s.seen = kept.Pods
		return s, nil, nil
	default:
		if _, err := os.Stat(file.DamagedPath()); err != nil {
			return s, nil, nil
		}
		err = errors.New("it was set aside before")
	}
	s.lost = true
	return s, fmt.Errorf("what pods of device plugins were first seen with cannot be read, and lies in %s now: shares "+
		"and linked GPUs of those that run "+
		"count on every GPU until they end, for their annotations may have been changed meanwhile: %w",
		file.DamagedPath(), err), nil
}

// observe notes a pod as the API server has it. It reports whether the observation of the pod changed. A static pod
// keeps what it was first seen with under the previous mirror.
func (s *observations) observe(mirror, pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mirror != nil && mirror.UID != pod.UID {
		if seen, ok := s.seen[mirror.UID]; ok {
			seen.Pod = pod
			s.seen[pod.UID], s.changed = seen, true
			delete(s.seen, mirror.UID)
		}
	}
	before, known := s.seen[pod.UID]
	if s.lost && !s.all && !known && deviceplugin.Holds(pod) {
		s.seen[pod.UID] = deviceplugin.Observation{Namespace: pod.Namespace, Name: pod.Name, Lost: true}
		return true
	}
	s.seen.Observe(pod, time.Now())
	after, holds := s.seen[pod.UID]
	s.changed = s.changed || !holds && before.Devices != nil
	return known != holds || !reflect.DeepEqual(before, after)
}

// deleted drops what is known of a pod that the API server no longer has, unless the pod has devices, and processes
// that may use them: the kubelet does not list a pod that was deleted by force, and stops it only then.
func (s *observations) deleted(pod *corev1.Pod, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !runs || !deviceplugin.Holds(pod) || s.seen[pod.UID].Devices == nil {
		s.forget(pod.UID)
	}
}

// ended drops what is known of a deleted pod that has no processes any more. It reports whether anything was known.
func (s *observations) ended(pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.seen[pod.UID]
	s.forget(pod.UID)
	return known
}

// forget drops what is known of a pod. The caller holds the lock.
func (s *observations) forget(uid types.UID) {
	s.changed = s.changed || s.seen[uid].Devices != nil
	delete(s.seen, uid)
}

// listed returns the pods that earlier processes saw and the API server no longer has. Call it once all pods of the API
// server have been seen. It forgets such pods if nothing of them was kept.
func (s *observations) listed(there func(types.UID) bool) (gone []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = true
	for uid, seen := range s.seen {
		switch {
		case there(uid):
		case seen.Pod != nil && seen.Pod.UID == uid:
			gone = append(gone, seen.Pod)
		default:
			s.forget(uid)
		}
	}
	return gone
}

// setLeft sets when the last device plugin left; the zero time where one may serve.
func (s *observations) setLeft(left time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = left
}

// needKubelet reports whether the kubelet may have something to tell of one of the pods, if it is not
// asked before that time.
func (s *observations) needKubelet(pods []*corev1.Pod) (need bool, notBefore time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range pods {
		ofPod, since := s.seen.NeedKubelet(pod)
		need = need || ofPod
		if ofPod && since.After(notBefore) {
			notBefore = since
		}
	}
	return need, notBefore
}

// reserved returns what the pods hold of the GPUs, and what deleted pods hold that still run. It notes what the kubelet
// says of the pods.
func (s *observations) reserved(pods, leaving []*corev1.Pod, n deviceplugin.Node) held.Reserved {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.seen.AddDevices(pods, n.Kubelet)
	s.changed = s.changed || news || s.lost && s.all && n.Kubelet.Err == nil
	n.Left, n.Observed = s.left, s.seen
	for _, pod := range leaving {
		if s.seen[pod.UID].Devices != nil && deviceplugin.Holds(pod) {
			pods = append(pods, pod)
		}
	}
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
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	earlier, _, _ := s.file.Load() // one that is not understood is replaced
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := deviceplugin.Observations{}
	for uid, observed := range s.seen {
		if first, ok := earlier.Pods[uid]; ok {
			// Files of earlier versions have no pods.
			first.Pod = cmp.Or(first.Pod, observed.Pod)
			s.seen[uid], observed = first, first
		}
		if observed.Devices != nil {
			kept[uid] = observed
		}
	}
	if err := s.file.Store(checkpointContent{kept}); err != nil {
		return fmt.Errorf("remember what pods without a claim were first seen with: %w", err)
	}
	s.changed, s.lost = false, false
	return nil
}

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
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// sightsFile keeps what pods that a device plugin gave devices to were first seen with.
type sightsFile string

// sightsContent is what the file holds.
type sightsContent struct {
	Pods deviceplugin.Sights `json:"pods"`
}

// damaged is where a file lies that could not be read. As long as there is none in its
// place, what it said is lost.
func (f sightsFile) damaged() string { return string(f) + ".damaged" }

func (f sightsFile) load() (deviceplugin.Sights, error) {
	data, err := os.ReadFile(string(f))
	if err != nil {
		return nil, err
	}
	var content sightsContent
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("decode %s: %w", string(f), err)
	}
	if content.Pods == nil {
		return nil, fmt.Errorf("decode %s: it lacks the list of pods", string(f))
	}
	return content.Pods, nil
}

func (f sightsFile) store(s deviceplugin.Sights) error {
	data, err := json.Marshal(sightsContent{Pods: s})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(string(f), data, 0o600, true); err != nil {
		return fmt.Errorf("remember what pods without a claim were first seen with: %w", err)
	}
	return nil
}

// sights knows what the node's pods were first seen with, also by earlier processes.
type sights struct {
	file sightsFile
	// locked calls do while no other process of the node writes the file.
	locked func(ctx context.Context, do func() error) error

	mu   sync.Mutex
	seen deviceplugin.Sights
	left time.Time
	// lost says that what earlier processes saw is lost. It does until the file is
	// written anew; all marks that the pods of the first list are all there.
	lost, all bool
	// changed says that the file has to be written.
	changed bool
}

// openSights reads the file. Where it cannot be read, it is set aside, and damage says
// so: of the pods that are there it is not known any more what they were seen with.
func openSights(file sightsFile, left time.Time, locked func(context.Context, func() error) error) (s *sights, damage, err error) {
	s = &sights{file: file, locked: locked, seen: deviceplugin.Sights{}, left: left}
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
	return s, fmt.Errorf("what pods of device plugins were first seen with cannot be read, and lies in %s now: shares and linked GPUs of those that run "+
		"count on every GPU until they end, for their annotations may have been changed meanwhile: %w", file.damaged(), err), nil
}

// see notes a pod as the API server has it. It returns whether that is another sight of
// it than before.
func (s *sights) see(pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.seen[pod.UID]
	if s.lost && !s.all && !known && deviceplugin.Holds(pod) {
		s.seen[pod.UID] = deviceplugin.Sight{Namespace: pod.Namespace, Name: pod.Name, Lost: true}
		return true
	}
	s.seen.See(pod)
	after, holds := s.seen[pod.UID]
	s.changed = s.changed || !holds && before.Devices != nil
	return known != holds || !reflect.DeepEqual(before, after)
}

// forget is for a pod that is gone.
func (s *sights) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = s.changed || s.seen[uid].Devices != nil
	delete(s.seen, uid)
}

// prune is told all pods of the node, once all have been seen: others are gone.
func (s *sights) prune(pods []*corev1.Pod) {
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
func (s *sights) setLeft(left time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = left
}

// ask says whether the kubelet may have something to tell of one of the pods.
func (s *sights) ask(pods []*corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range pods {
		if s.seen.Ask(pod) {
			return true
		}
	}
	return false
}

// of is what is taken of the cards by the pods. What the kubelet says of them is noted.
func (s *sights) of(pods []*corev1.Pod, cards []gpu.GPU, kubelet deviceplugin.Kubelet) deviceplugin.Taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.seen.Keep(pods, kubelet)
	s.changed = s.changed || news || s.lost && s.all && kubelet.Err == nil
	return deviceplugin.Of(pods, deviceplugin.Node{Cards: cards, Kubelet: kubelet, Left: s.left, Sights: s.seen})
}

// store writes the file, if need be. What another process wrote before counts as seen
// first.
func (s *sights) store(ctx context.Context) error {
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
		kept := deviceplugin.Sights{}
		for uid, sight := range s.seen {
			if first, ok := earlier[uid]; ok {
				s.seen[uid], sight = first, first
			}
			if sight.Devices != nil {
				kept[uid] = sight
			}
		}
		if err := s.file.store(kept); err != nil {
			return err
		}
		s.changed, s.lost = false, false
		return nil
	})
}

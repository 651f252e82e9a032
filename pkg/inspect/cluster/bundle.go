// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// Limits of the logs: so many pods, those in trouble first, so many lines of each container
// and bytes at most, so many read side by side.
const (
	logPodsMost  = 40
	logLinesMost = 10000
	logBytesMost = 4 << 20
	logsAtOnce   = 8
	// logMost is how long one may take: a node that hangs does not hold the others up.
	logMost = 20 * time.Second
)

// writers are the driver's programs that write Events.
var writers = []string{"gpu-kubelet-plugin", "gpu-compat-controller", "gpu-mps-supervisor"}

// BundleInput reads what a bundle is made of. What cannot be read is said in it; only that the
// API server does not answer is an error.
func (r Reader) BundleInput(ctx context.Context, version string) (bundle.Input, error) {
	in := bundle.Input{Version: version, Now: time.Now()}
	var err error
	if in.Snapshot, err = r.Snapshot(ctx); err != nil {
		return in, err
	}
	missing := func(what string, err error) {
		if err != nil {
			in.Missing = append(in.Missing, what+": "+strings.Join(strings.Fields(err.Error()), " "))
		}
	}
	in.Table, err = r.Read(ctx)
	missing("the table", err)
	in.Templates, err = list[*resourceapi.ResourceClaimTemplate](ctx,
		r.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll), metav1.ListOptions{})
	missing("resourceclaimtemplates.resource.k8s.io", err)
	in.Rules, _, err = r.readTaintRules(ctx)
	missing("devicetaintrules.resource.k8s.io", err)
	for _, writer := range writers {
		written, err := list[*corev1.Event](ctx, r.Client.CoreV1().Events(metav1.NamespaceAll),
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("source", writer).String()})
		missing("events of "+writer, err)
		in.Events = append(in.Events, written...)
	}
	for _, namespace := range bundle.DriverOf(in.Snapshot).Namespaces() {
		found, err := list[*corev1.ConfigMap](ctx, r.Client.CoreV1().ConfigMaps(namespace),
			metav1.ListOptions{LabelSelector: ofDriver})
		missing("configmaps of namespace "+namespace, err)
		in.ConfigMaps = append(in.ConfigMaps, found...)
	}
	var notes []string
	in.Logs, notes = r.logs(ctx, in.Snapshot)
	in.Missing = append(in.Missing, notes...)
	return in, ctx.Err()
}

// logs reads those of the driver's pods, and says what it has not read.
func (r Reader) logs(ctx context.Context, s *doctor.Snapshot) (found []bundle.Log, notes []string) {
	driver := bundle.DriverOf(s)
	var pods []*corev1.Pod
	for _, pod := range s.Pods {
		if driver.Owns(pod, &pod.Spec) {
			pods = append(pods, pod)
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(-cmp.Compare(trouble(a), trouble(b)), cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	if len(pods) > logPodsMost {
		notes = append(notes,
			fmt.Sprintf("logs of %d of %d pods of the driver: those that are ready and never restarted were "+
				"left out first", len(pods)-logPodsMost, len(pods)))
		pods = pods[:logPodsMost]
	}
	var wanted []bundle.Log
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			wanted = append(wanted, bundle.Log{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name})
			if c.RestartCount > 0 {
				wanted = append(wanted, bundle.Log{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name, Previous: true})
			}
		}
	}
	failed := make([]error, len(wanted))
	var group errgroup.Group
	group.SetLimit(logsAtOnce)
	for i := range wanted {
		group.Go(func() error {
			failed[i] = r.log(ctx, &wanted[i])
			return nil
		})
	}
	_ = group.Wait() //nolint:errcheck // It returns none.
	for i, err := range failed {
		if apierrors.IsForbidden(err) {
			notes = append(notes, "logs of namespace "+wanted[i].Namespace+": you may not get pods/log there")
			continue
		}
		if err != nil {
			notes = append(notes, wanted[i].Name()+": "+strings.Join(strings.Fields(err.Error()), " "))
			continue
		}
		found = append(found, wanted[i])
	}
	return found, slices.Compact(notes)
}

// trouble is how much there is to be read of a pod.
func trouble(pod *corev1.Pod) int {
	n := 0
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if n += int(c.RestartCount); !c.Ready {
			n++
		}
	}
	return n
}

// log reads the end of one log.
func (r Reader) log(ctx context.Context, l *bundle.Log) error {
	ctx, cancel := context.WithTimeoutCause(ctx, logMost, fmt.Errorf("its node did not answer within %v", logMost))
	defer cancel()
	stream, err := r.Client.CoreV1().Pods(l.Namespace).GetLogs(l.Pod, &corev1.PodLogOptions{
		Container: l.Container, Previous: l.Previous, TailLines: ptr.To(int64(logLinesMost)), Timestamps: true,
	}).Stream(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if l.Text, l.Cut, err = ending(stream, logBytesMost); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return errors.Join(err, stream.Close())
}

// ending reads to the end and keeps the last bytes, in whole lines. LimitBytes would keep the first.
func ending(in io.Reader, most int) (text []byte, cut bool, err error) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := in.Read(buffer)
		text = append(text, buffer[:n]...)
		if len(text) > 2*most {
			text, cut = slices.Clone(text[len(text)-most:]), true
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	if len(text) > most {
		text, cut = text[len(text)-most:], true
	}
	if cut {
		if _, rest, found := strings.Cut(string(text), "\n"); found {
			text = []byte(rest)
		}
	}
	return text, cut, nil
}

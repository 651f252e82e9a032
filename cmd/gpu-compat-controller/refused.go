// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// lastEvents is how long the end waits for an Event that is on its way.
const lastEvents = time.Second

// tellRefused tells in Events of this replica's pod, whether it leads or not, of settings that this program would not
// start with.
func tellRefused(ctx context.Context, client kubernetes.Interface, namespace, name string, refused <-chan error) {
	broadcast := report.NewBroadcast(ctx, client, corev1.EventSource{Component: v1alpha1.ControllerName},
		record.CorrelatorOptions{})
	defer broadcast.Close(ctx, lastEvents)
	events := report.New(broadcast.Recorder(), clock.RealClock{})
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-refused:
			// kubectl describe finds Events by the UID.
			pod, failed := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			if failed != nil {
				klog.FromContext(ctx).Error(failed, "No Event tells of the settings: this replica's pod cannot be read",
					"pod", klog.KRef(namespace, name))
				continue
			}
			if err == nil {
				events.Clear(pod.UID, v1alpha1.ReasonSettingsRefused)
				continue
			}
			events.Warn(report.Pod(namespace, name, pod.UID), v1alpha1.ReasonSettingsRefused, "The ConfigMap "+
				v1alpha1.ControllerName+" has changed, and this program would not start with it: it goes on with the settings "+
				"from before until these are right: "+err.Error())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Names are read as these regular expressions say.
var (
	ofPod = regexp.MustCompile(
		`(?:^|-)pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?::[^:]*:([0-9a-f]{64}))?$`)
	ofContainer = regexp.MustCompile(`^(?:[a-z0-9-]+-)?([0-9a-f]{64})(?:\.scope)?$`)
)

func FuzzNames(f *testing.F) {
	for _, name := range []string{"pod" + podUID, "kubepods-burstable-pod" + podUnder + ".slice",
		"kubepods-pod" + podUnder + ".slice:cri-containerd:" + containerID, "pod" + podUID + "::" + containerID,
		"kubepods-pod" + podUnder + ".slice:" + containerID, ":a:" + containerID, "a:b-pod" + podUID,
		"pod" + strings.ReplaceAll(podUID, "-", ""), "xpod" + podUID, "pod" + podUID + ".slice.slice", "pod" + podUID + "0",
		containerID, "cri-containerd-" + containerID + ".scope", "-" + containerID, "--" + containerID,
		"crio-conmon-" + containerID, "Crio-" + containerID, "a.b-" + containerID, containerID + ".scope.scope", "pod", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		var want Place
		match := ofPod.FindStringSubmatch(name)
		if match != nil {
			want = Place{Pod: types.UID(strings.ReplaceAll(match[1], "_", "-")), Container: match[2]}
		}
		if got, is := placeNamed(name); got != want || is != (match != nil) {
			t.Errorf("%q is %+v (%t), want %+v", name, got, is, want)
		}
		id := ""
		if match := ofContainer.FindStringSubmatch(name); match != nil {
			id = match[1]
		}
		expect.Equal(t, id, containerNamed(name), "%q is of container", name)
	})
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// What Prepare and Unprepare cost beside others' claims. Most of it is one fsync.
func BenchmarkPrepare(b *testing.B) {
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"share": sharesOf("u1", 0, 3), "whole": wholeGPUs("u1", 0, 1),
	} {
		b.Run(name, func(b *testing.B) {
			ctx := klog.NewContext(b.Context(), klog.Logger{})
			n := newNode(b)
			for _, beside := range []*resourceapi.ResourceClaim{sharesOf("u2", 2, 1), sharesOf("u3", 3, 5, 5)} {
				if _, err := n.Prepare(ctx, beside); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := n.Prepare(ctx, c); err != nil {
					b.Fatal(err)
				}
				expect.NoError(b, n.Unprepare(ctx, c.UID))
			}
		})
	}
}

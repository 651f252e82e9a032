// SPDX-License-Identifier: Apache-2.0

package rightsize_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/rightsize"
)

// BenchmarkDecide advises on a cluster of 1000 nodes: 8000 pods of 2000 workloads, and 40000 that are gone.
func BenchmarkDecide(b *testing.B) {
	const ends = "bcdfghjklmnpqrstvwxz2456789"
	name := func(w, p int) string { return fmt.Sprintf("w%d-55c8f97bb-%s", w, strings.Repeat(ends[p:p+1], 5)) }
	var s scene
	for w := range 2000 {
		for p := range 4 {
			s.pod(name(w, p), fmt.Sprintf("ReplicaSet/w%d-7d9f", w), "eight", "gpu gpu-0-share 8")
		}
	}
	var period consumption.Period
	for i := range 48000 {
		name := name(i%2000, i/2000)
		of := consumption.Series{Namespace: "team", Pod: name, Claim: name + "-gpu", UUID: "GPU-0"}
		period.Granted = append(period.Granted, consumption.Granted{Series: of, MostGiB: 8.4, Present: week * time.Hour,
			Seen: week * time.Hour, Age: week * time.Hour})
		period.Used = append(period.Used, consumption.Used{Series: of, MostGiB: 3})
	}
	for b.Loop() {
		users := period.Users(consumption.NewWorkloads(s.pods))
		rightsize.Decide(rightsize.Input{Settings: rightsize.Settings(s.pods, s.claims), Users: users, LargestGiB: 80})
	}
}

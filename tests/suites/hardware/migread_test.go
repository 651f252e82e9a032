// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// comparison is what the driver tells, beside what the test double tells.
type comparison struct{ what, double, driver string }

// compareMIG has what double and driver tell of each profile.
func compareMIG(profiles []gpu.Profile) (all []comparison) {
	table := nearest(profiles)
	double, driver := described(profilesOf(table)), described(profiles)
	ids := slices.Concat(slices.Collect(maps.Keys(double)), slices.Collect(maps.Keys(driver)))
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		all = append(all, comparison{fmt.Sprintf("profile %d, as the double's %s", id, table),
			cmp.Or(double[id], "none"), cmp.Or(driver[id], "none")})
	}
	return all
}

// described are profiles in a line each, by their numbers.
func described(profiles []gpu.Profile) map[int]string {
	lines := map[int]string{}
	for _, p := range profiles {
		lines[p.Kind.ProfileID] = describe(p)
	}
	return lines
}

// describe is a profile in a line.
func describe(p gpu.Profile) string {
	k := p.Kind
	return fmt.Sprintf("%s, %d at most, %d MiB, %d SMs, engines CE %d DEC %d ENC %d JPEG %d OFA %d, at %v : %d", k.Profile,
		p.Count, k.MemoryMiB, k.SMCount, k.CopyEngines, k.Decoders, k.Encoders, k.JPEGs, k.OFAs, p.Starts, k.Size)
}

// nearest is the double's table whose largest profile is most like that which was told.
func nearest(profiles []gpu.Profile) string {
	largest := func(profiles []gpu.Profile) (sms, mib int64) {
		for _, p := range profiles {
			sms, mib = max(sms, int64(p.Kind.SMCount)), max(mib, p.Kind.MemoryMiB)
		}
		return sms, mib
	}
	apart := func(a, b int64) int64 { return max(a-b, b-a) }
	sms, mib := largest(profiles)
	return slices.MinFunc(sim.MIGTables(), func(a, b string) int {
		smsOfA, mibOfA := largest(profilesOf(a))
		smsOfB, mibOfB := largest(profilesOf(b))
		return cmp.Or(cmp.Compare(apart(sms, smsOfA), apart(sms, smsOfB)),
			cmp.Compare(apart(mib, mibOfA), apart(mib, mibOfB)))
	})
}

// profilesOf are the profiles of a table of the double's.
func profilesOf(table string) (all []gpu.Profile) {
	for _, p := range sim.MIGTable(table) {
		all = append(all, p.Profile)
	}
	return all
}

// minors compares the lines of mig-minors, the kernel module's table of capabilities, with the double's: how many only
// one of them has.
func minors(content string) string {
	lines := strings.Split(strings.TrimSpace(content), "\n")
	double := strings.Split(strings.TrimSpace(sim.MIGMinors()), "\n")
	only := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(double, line) })
	found := fmt.Sprintf("%d and %d", len(only), len(double)-(len(lines)-len(only)))
	if len(only) > 0 {
		found += fmt.Sprintf(", as %q", only[:min(3, len(only))])
	}
	return found
}

// packings are ways to fill a GPU after which each profile was made: instances of a profile and of smaller ones next to
// each other, or alone where its name has a sign: it takes engines that others need.
func packings(profiles []gpu.Profile) (all [][]gpu.Instance) {
	falling := slices.SortedFunc(slices.Values(profiles), func(a, b gpu.Profile) int { return smaller(b, a) })
	made := map[int]bool{}
	for n, first := range falling {
		if made[first.Kind.ProfileID] {
			continue
		}
		packing := []gpu.Instance{first.At(first.Starts[0])}
		for _, p := range falling[n+1:] {
			if at, ok := beside(packing, p); ok && plain(first) && plain(p) {
				packing = append(packing, at)
				made[p.Kind.ProfileID] = true
			}
		}
		all = append(all, packing)
	}
	return all
}

func plain(p gpu.Profile) bool { return !strings.ContainsAny(p.Kind.Profile, "+-") }

// beside is the first place of a profile that instances leave.
func beside(all []gpu.Instance, p gpu.Profile) (gpu.Instance, bool) {
	for _, start := range p.Starts {
		at := p.At(start)
		if !slices.ContainsFunc(all, func(other gpu.Instance) bool { return at.PlaceOf().Overlaps(other.PlaceOf()) }) {
			return at, true
		}
	}
	return gpu.Instance{}, false
}

// smaller compares profiles by what of a GPU an instance takes; of two that take as much, there can be more of the
// smaller one.
func smaller(a, b gpu.Profile) int {
	return cmp.Or(cmp.Compare(a.Kind.SMCount, b.Kind.SMCount), cmp.Compare(a.Kind.Size, b.Kind.Size),
		cmp.Compare(b.Count, a.Count), strings.Compare(a.Kind.Profile, b.Kind.Profile))
}

// instances names instances, or where they are to be.
func instances(all []gpu.Instance) string {
	var names []string
	for _, i := range all {
		names = append(names, strings.TrimSpace(i.Place()+" "+i.UUID))
	}
	return strings.Join(names, ", ")
}

// What tells the same as a table is compared with that one, and is the same; each difference is one row.
func TestCompareMIG(t *testing.T) {
	differ := func(profiles []gpu.Profile) (n int) {
		for _, c := range compareMIG(profiles) {
			if c.double != c.driver {
				n++
			}
		}
		return n
	}
	for _, table := range sim.MIGTables() {
		profiles := profilesOf(table)
		if n, rows := differ(profiles), compareMIG(profiles); n > 0 || len(rows) != len(profiles) {
			t.Errorf("%s: %d differences: %+v", table, n, rows)
		}
	}
	profiles := profilesOf("h100-80")
	profiles[0].Kind.SMCount++
	profiles[1].Starts = []int{0, 2}
	extra := profiles[2]
	extra.Kind.ProfileID = 40
	profiles = append(profiles[:len(profiles)-1], extra)
	if n, rows := differ(profiles), compareMIG(profiles); n != 4 || !strings.Contains(rows[0].what, "h100-80") {
		t.Errorf("%d differences, want 4 from h100-80: %+v", n, rows)
	}
}

func TestMinors(t *testing.T) {
	same := sim.MIGMinors()
	for content, want := range map[string]string{
		same: "0 and 0",
		strings.Replace(same, "gpu0/gi0/access 3\n", "gpu0/gi0/access 4\n", 1): `1 and 1, as ["gpu0/gi0/access 4"]`,
	} {
		if got := minors(content); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestPackings(t *testing.T) {
	for table, want := range map[string]string{
		"h200-141": "7g.141gb at slices 0-7; 4g.71gb at slices 0-3, 3g.71gb at slices 4-7; " +
			"2g.35gb at slices 0-1, 1g.35gb at slices 2-3, 1g.18gb at slice 4; 1g.18gb+me at slice 0",
		"a30": "4g.24gb at slices 0-3; 2g.12gb+me at slices 0-1; 2g.12gb at slices 0-1, 1g.6gb at slice 2; " +
			"1g.6gb+me at slice 0",
	} {
		var got []string
		for _, packing := range packings(profilesOf(table)) {
			got = append(got, instances(packing))
		}
		if joined := strings.Join(got, "; "); joined != want {
			t.Errorf("%s: %s, want %s", table, joined, want)
		}
	}
}

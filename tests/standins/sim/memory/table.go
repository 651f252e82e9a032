// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// table is what the driver keeps of a GPU: lines "limit CGROUP SOFT HARD PATH" and "use HOLDER BYTES CGROUP …",
// where a control group is the number that it is known by.
type table struct {
	limits []entry
	uses   []use
}

type entry struct {
	number, soft, hard uint64
	path               string
}

type use struct {
	holder string
	bytes  uint64
	to     []uint64
}

func parse(content string) (*table, error) {
	t := &table{}
	for line := range strings.Lines(content) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var err error
		switch kind {
		case "limit":
			var l entry
			_, err = fmt.Sscanf(rest, "%d %d %d %s", &l.number, &l.soft, &l.hard, &l.path)
			t.limits = append(t.limits, l)
		case "use":
			var u use
			_, err = fmt.Sscanf(rest, "%s %d", &u.holder, &u.bytes)
			for _, field := range strings.Fields(rest)[min(2, len(strings.Fields(rest))):] {
				var number uint64
				if _, e := fmt.Sscan(field, &number); e != nil {
					err = e
				}
				u.to = append(u.to, number)
			}
			t.uses = append(t.uses, u)
		default:
			err = errors.New("it is neither a limit nor a use")
		}
		if err != nil {
			return nil, fmt.Errorf("read what the driver counts: line %q: %w", line, err)
		}
	}
	return t, nil
}

func (t *table) String() string {
	var out strings.Builder
	for _, l := range t.limits {
		fmt.Fprintf(&out, "limit %d %d %d %s\n", l.number, l.soft, l.hard, l.path)
	}
	for _, u := range t.uses {
		fmt.Fprintf(&out, "use %s %d", u.holder, u.bytes)
		for _, number := range u.to {
			fmt.Fprintf(&out, " %d", number)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// charged are the control groups that pay for what a program of that one allocates.
func (t *table) charged(group Cgroup, mode string) []uint64 {
	switch mode {
	case sim.MemoryLimitsDmem:
		return group.chain
	case sim.MemoryLimitsMisc:
		for i, number := range group.chain {
			if _, limited := t.limit(number); limited {
				return group.chain[i : i+1]
			}
		}
	}
	return nil
}

func (t *table) limit(number uint64) (entry, bool) {
	i := slices.IndexFunc(t.limits, func(l entry) bool { return l.number == number })
	if i < 0 {
		return entry{}, false
	}
	return t.limits[i], true
}

func (t *table) used(number uint64) (bytes uint64) {
	for _, u := range t.uses {
		if slices.Contains(u.to, number) {
			bytes += u.bytes
		}
	}
	return bytes
}

func (t *table) all() (bytes uint64) {
	for _, u := range t.uses {
		bytes += u.bytes
	}
	return bytes
}

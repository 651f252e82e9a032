// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"
)

func ms(values ...int) Sample {
	var s Sample
	for _, v := range values {
		s = append(s, time.Duration(v)*time.Millisecond)
	}
	return s
}

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		sample Sample
		q      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{ms(7), 0.99, 7 * time.Millisecond},
		{ms(4, 1, 3, 2), 0.5, 2 * time.Millisecond},
		{ms(4, 1, 3, 2), 0.51, 3 * time.Millisecond},
		{ms(4, 1, 3, 2), 0, time.Millisecond},
		{ms(4, 1, 3, 2), 1, 4 * time.Millisecond},
	} {
		if got := test.sample.Quantile(test.q); got != test.want {
			t.Errorf("quantile %v of %v is %v, want %v", test.q, test.sample, got, test.want)
		}
	}
}

func TestMinus(t *testing.T) {
	got := ms(5, 7, 9).Minus(ms(1, 9))
	if want := "4.0 / -2.0 ms"; got.Summary(1, 0) != want {
		t.Errorf("the differences are %v, want %v", got.Summary(1, 0), want)
	}
}

func TestTable(t *testing.T) {
	table := Table{Head: []string{"measure", "share", "no claim"}}
	table.Set("first", "share", ms(1, 1000).Summary(0.5, 1))
	table.Set("second", "no claim", "2")
	table.Set("second", "nobody's", "3")
	table.Set("first", "no claim", Sample(nil).Summary(0.5))
	var out strings.Builder
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	want := `
| measure | share | no claim |
| --- | --- | --- |
| first | 1.0 / 1000 ms | – |
| second | – | 2 |
`
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}

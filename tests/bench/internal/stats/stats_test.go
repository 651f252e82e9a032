// SPDX-License-Identifier: Apache-2.0

package stats

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
	var out strings.Builder
	if err := WriteTable(&out,
		[]Row{{Measure: "m", Product: ms(1, 1000).Summary(0.5, 1), Ratio: Ratio(3, 2)}}); err != nil {
		t.Fatal(err)
	}
	if want := "| m | 1.0 / 1000 ms | – | – | 1.50 | – |"; !strings.Contains(out.String(), want) {
		t.Errorf("the table is\n%swithout the row\n%s", out.String(), want)
	}
}

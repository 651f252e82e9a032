// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
)

func TestWhatMovesAreFor(t *testing.T) {
	for _, tc := range []struct {
		flags goal
		want  moves.Question
		pod   string
	}{
		{goal{most: 10}, moves.Question{Most: 10}, ""},
		{goal{gpu: true, most: 1}, moves.Question{Goal: moves.GPU, Most: 1}, ""},
		{goal{node: true, most: 3}, moves.Question{Goal: moves.Node, Most: 3}, ""},
		{goal{pod: "pod/train", most: 3}, moves.Question{Most: 3}, "train"},
	} {
		if got, pod, err := tc.flags.question(); err != nil || got != tc.want || pod != tc.pod {
			t.Errorf("%+v asks %+v for pod %q, error %v; want %+v for %q", tc.flags, got, pod, err, tc.want, tc.pod)
		}
	}
}

func TestMovesThatCannotBeAskedFor(t *testing.T) {
	fail(t, map[string]string{
		"defragment -o yaml":               "^--output yaml: not json",
		"defragment --moves 0":             "^--moves 0: not 1 or more",
		"defragment --for train":           `^"train" names neither a pod nor a claim`,
		"defragment --for claim/a":         "^--for makes room for a pod: write pod/NAME",
		"defragment --gpu --node":          "none of the others can be",
		"defragment --gpu --for pod/train": "none of the others can be",
		"defragment":                       "^(list|read) ",
	})
}

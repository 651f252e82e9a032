// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const checkout = "../.."

// A test that the table of promises names exists, in the lane that is said to run it.
func TestPromisesAreHeld(t *testing.T) {
	all, err := promises(checkout)
	expect.NoError(t, err)
	if len(all) < 60 {
		t.Errorf("the table has %d promises", len(all))
	}
	found := map[string][]string{}
	for _, lane := range lanes() {
		found[lane.Name] = testsOf(t, lane)
	}
	for _, p := range all {
		if !slices.Contains(found[p.Lane], p.Test) {
			t.Errorf("%s promises %q: lane %s has no test %s", p.Page, p.Text, p.Lane, p.Test)
		}
	}
}

// Each test by which docs/internals/reliability.md shows a promise is in the table, and no test is there twice.
func TestPromisesAreWhatThePagesPromise(t *testing.T) {
	all, err := promises(checkout)
	expect.NoError(t, err)
	held := map[string]bool{}
	for _, p := range all {
		if held[p.Test] {
			t.Errorf("two promises are held by %s: name one that fails for each", p.Test)
		}
		held[p.Test] = true
		if _, err := os.Stat(filepath.Join(checkout, "docs", p.Page)); err != nil && p.Page != "README.md" {
			t.Errorf("%q: there is no page %s", p.Text, p.Page)
		}
	}
	content, err := os.ReadFile(filepath.Join(checkout, "docs", "internals", "reliability.md"))
	expect.NoError(t, err)
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(content), -1) {
		if !held[m[1]] {
			t.Errorf("reliability.md shows something by %s, which is not in the table of promises", m[1])
		}
	}
}

// What a lane leaves out is one of its tests: a name that has changed leaves nothing out.
func TestWhatLanesLeaveOut(t *testing.T) {
	for _, lane := range lanes() {
		if lane.Suite == nil || lane.Suite.LeftOut == nil {
			continue
		}
		there := testsOf(t, lane)
		for _, test := range lane.Suite.LeftOut {
			if !slices.Contains(there, test) {
				t.Errorf("lane %s leaves out %s, which is none of its tests", lane.Name, test)
			}
		}
	}
}

// testsOf are the names of a lane's tests, by its files.
func testsOf(t *testing.T, lane Lane) []string {
	t.Helper()
	var dirs []string
	if lane.Suite != nil {
		dirs = append(dirs, lane.Suite.Package)
	}
	for _, command := range lane.Commands {
		if command.Tests != nil {
			dirs = append(dirs, command.Dir)
		}
	}
	var names []string
	for _, dir := range dirs {
		root := filepath.Join(checkout, dir)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || otherModule(path)):
				return fs.SkipDir
			case strings.HasSuffix(path, "_test.go"):
				found, err := testsIn(path, lane.Suite != nil)
				names = append(names, found...)
				return err
			}
			return nil
		})
		expect.NoError(t, err)
	}
	return names
}

func otherModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// testsIn are the tests of a file, unless a tag keeps it out of a lane without a cluster.
func testsIn(path string, cluster bool) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, group := range file.Comments {
		if group.Pos() < file.Package && strings.Contains(group.List[0].Text, "//go:build e2e") && !cluster {
			return nil, nil
		}
	}
	var names []string
	for _, declared := range file.Decls {
		f, ok := declared.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}

// The page shows the table as `lanes list` prints it.
func TestPageHasTheLanes(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(checkout, page))
	expect.NoError(t, err)
	var table bytes.Buffer
	list(&table, lanes())
	if !strings.Contains(string(content), "\n"+table.String()+"\n") {
		t.Errorf("%s has another table of lanes than `make lanes` prints:\n%s", page, table.String())
	}
}

// A workflow makes a job of each name.
func TestNamesAreJSON(t *testing.T) {
	for arguments, want := range map[string]string{
		"names gang lint": `["lint","gang"]` + "\n",
		"names":           "",
		"names nothing":   "",
	} {
		var out, complaints bytes.Buffer
		status := run(t.Context(), strings.Fields(arguments), &out, &complaints)
		if out.String() != want || (status == 0) != (want != "") || (complaints.Len() == 0) != (want != "") {
			t.Errorf("lanes %s prints %q and %q, with status %d", arguments, out.String(), complaints.String(), status)
		}
	}
}

func TestChoose(t *testing.T) {
	all := []Lane{{Name: "a", When: EveryChange}, {Name: "b", When: Complete}, {Name: "c", When: Release}}
	for name, test := range map[string]struct {
		names      []string
		want, fail string
	}{
		"a run":              {[]string{"test"}, "a", ""},
		"all of it":          {[]string{"test-all"}, "a b", ""},
		"lanes by name":      {[]string{"c", "a"}, "a c", ""},
		"no such lane":       {[]string{"a", "d"}, "", `no lane "d"`},
		"nothing":            {nil, "", "name a lane"},
		"a release's checks": {[]string{"release-checks"}, "c", ""},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, err := choose(all, test.names)
			var got []string
			for _, lane := range chosen {
				got = append(got, lane.Name)
			}
			if strings.Join(got, " ") != test.want || (err == nil) != (test.fail == "") ||
				err != nil && !strings.Contains(err.Error(), test.fail) {
				t.Errorf("got %v and error %v, want %q and %q", got, err, test.want, test.fail)
			}
		})
	}
}

// Each lane of release-checks is in turn within two weeks, and comes behind the lanes that every change runs.
func TestLanesInTurn(t *testing.T) {
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	turns := map[string]bool{}
	_, next := inTurn(lanes(), noon.AddDate(0, 0, -1))
	for day := range 14 {
		today, tomorrow := inTurn(lanes(), noon.AddDate(0, 0, day))
		if today.When != Release || today.Name != next.Name {
			t.Errorf("on day %d lane %s is in turn, and %s was to be", day, today.Name, next.Name)
		}
		turns[today.Name], next = true, tomorrow
	}
	for _, lane := range lanes() {
		if lane.When == Release && !turns[lane.Name] {
			t.Errorf("lane %s is not in turn within two weeks", lane.Name)
		}
	}
	chosen := []Lane{{Name: "a", When: EveryChange}, {Name: "b", When: EveryChange}, {Name: "c", When: Complete}}
	names := func(of []Lane) (names string) {
		for _, lane := range of {
			names += lane.Name
		}
		return names
	}
	if got := names(insert(chosen, Lane{Name: "r"})); got != "abrc" {
		t.Errorf("the lanes are run as %s, want abrc", got)
	}
	if got := names(insert(chosen, Lane{Name: "c"})); got != "abc" {
		t.Errorf("a lane that is run anyway makes it %s, want abc", got)
	}
}

func TestDigestAndSummary(t *testing.T) {
	const written = `{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"attr","Package":"p","Test":"TestGood","Key":"waited","Value":"2s for a pod"}
{"Action":"attr","Package":"p","Test":"TestGood","Key":"queued","Value":"4s"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":7}
{"Action":"run","Package":"p","Test":"TestBad"}
{"Action":"run","Package":"p","Test":"TestBad/one"}
{"Action":"output","Package":"p","Test":"TestBad/one","Output":"=== RUN   TestBad/one\n"}
{"Action":"output","Package":"p","Test":"TestBad/one","Output":"    a_test.go:1: want 1, got 2:\n"}
{"Action":"output","Package":"p","Test":"TestBad/one","Output":"        of two\n"}
{"Action":"output","Package":"p","Test":"TestBad/one","Output":"    a_test.go:2: --- namespace x\n"}
{"Action":"output","Package":"p","Test":"TestBad/one","Output":"        much\n"}
{"Action":"output","Package":"p","Test":"TestBad/one","Output":"    --- FAIL: TestBad/one (0.10s)\n"}
{"Action":"fail","Package":"p","Test":"TestBad/one","Elapsed":0.1}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":0.2}
{"Action":"output","Package":"p","Test":"TestNot","Output":"    a_test.go:9: no terminal\n"}
{"Action":"skip","Package":"p","Test":"TestNot","Elapsed":0}
{"Action":"fail","Package":"p","Elapsed":3.4}
not of a test
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: syntax error\n"}
{"ImportPath":"q","Action":"build-fail"}
`
	var lines []string
	tests, err := digest("lane", strings.NewReader(written), true, func(line string) { lines = append(lines, line) })
	expect.NoError(t, err)
	for _, want := range []string{"pass    3.0 s  TestGood (waited 2s for a pod)", "not of a test",
		"q.go:1: syntax error"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
	var out bytes.Buffer
	summarise(&out, []Outcome{{Lane: "lane", Took: 63 * time.Second, Tests: tests, Err: os.ErrInvalid},
		{Lane: "late", NotRun: "no time"}}, 64*time.Second)
	const want = `
The slowest tests:
      3.0 s  lane TestGood, which waited 2s for a pod
      0.2 s  lane TestBad
      0.0 s  lane TestNot

Skipped:
  lane TestNot: no terminal

Lanes:
  lane                 failed after 1 min 03 s: invalid argument
  late                 not run: no time
All of it took 1 min 04 s.

--- FAIL: lane TestBad/one (0.1 s)
    a_test.go:1: want 1, got 2:
        of two

--- FAIL: lane q (0.0 s)
it does not compile

1 passed, 2 failed, 1 skipped
`
	expect.Equal(t, want, out.String(), "summary")
}

// What runs the tests can be killed, and `go tool` says nothing of it in its exit status.
func TestTestsThatDoNotEnd(t *testing.T) {
	const begins, ends = `{"Action":"run","Package":"p","Test":"TestA"}
`, `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"late\n"}
`
	for written, want := range map[string]string{begins: "the first is p TestA", begins + ends: "",
		`{"Action":"start","Package":"p"}`: "the first is p"} {
		if _, err := digest("lane", strings.NewReader(written), true, func(string) {}); (err == nil) != (want == "") ||
			err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", written, err, want)
		}
	}
}

// A pattern that a shell or make changed on its way must not look like tests that passed.
func TestPatternOfNoTest(t *testing.T) {
	suite := Lane{Suite: &Suite{}}
	for _, test := range []struct {
		lane Lane
		only string
		ran  []*Test
		err  bool
	}{
		{suite, "TestA", []*Test{{Name: "TestA"}}, false},
		{suite, "TestA", []*Test{{Package: "a"}}, true},
		{Lane{Commands: []Command{{Tests: []string{"./..."}}}}, "TestA", nil, true},
		{Lane{Commands: []Command{{Shell: "true"}}}, "TestA", nil, false},
		{suite, "", nil, false},
	} {
		if err := noTests(test.lane, test.only, test.ran); (err != nil) != test.err {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// A suite whose time is up says which tests ran, and where they were.
func TestTimedOut(t *testing.T) {
	if got := patience(t.Context(), time.Now()); got != limit {
		t.Errorf("without an end its tests may take %s, want %s", got, limit)
	}
	now := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), now.Add(10*time.Minute))
	defer cancel()
	if got := patience(ctx, now); got != 10*time.Minute-tellMost {
		t.Errorf("in a run of 10 minutes its tests may take %s", got)
	}
	still, where, is := (&Test{Output: []string{"=== CONT  TestB\n", "panic: test timed out after 9m0s\n",
		"\trunning tests:\n", "\t\tTestA (8m1s)\n", "\t\tTestB (9m0s)\n", "\n", "goroutine 1 [chan receive]:\n",
		"\ttesting/testing.go:2042 +0x123\n", "\t_testmain.go:48 +0x9b\n", "goroutine 20 [chan receive]:\n", "p.TestB(...)\n",
		"\texample.com/p/b_test.go:5\n", "\texample.com/p/b_test.go:4 +0x2c\n", "\texample.com/p/b_test.go:5\n"}}).timedOut()
	if got := strings.Join(slices.Concat(still, where), "; "); !is ||
		got != "TestA (8m1s); TestB (9m0s); b_test.go:5; b_test.go:4" {
		t.Errorf("%v: %s", is, got)
	}
	if _, _, is := (&Test{Output: []string{"    a_test.go:1: it took long\n"}}).timedOut(); is {
		t.Error("a failure is taken for the end of the time")
	}
}

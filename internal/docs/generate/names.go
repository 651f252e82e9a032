// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// onObjects is how a comment says what a label means, such as
//
//	// On nodes, set by you: the mode (docs/modes.md).
var onObjects = regexp.MustCompile(`^On (nodes|pods|namespaces)(?:, set by ([a-z]+))?: (.*)$`)

// labels is the table of the labels on objects of a kind, by name.
func labels(all []constant, objects string) (table, error) {
	t := table{head: []string{"Label", "Meaning"}}
	if objects == "nodes" {
		t.head = []string{"Label", "Set by", "Meaning"}
	}
	for _, c := range all {
		for _, line := range c.doc {
			found := onObjects.FindStringSubmatch(line)
			if found == nil || found[1] != objects {
				continue
			}
			row := []string{code(c.value), found[2], strings.TrimSuffix(found[3], ".")}
			if objects != "nodes" {
				row = slices.Delete(row, 1, 2)
			} else if found[2] == "" {
				return t, fmt.Errorf("the comment of %s does not say who sets the label: On nodes, set by you: ", c.name)
			}
			t.rows = append(t.rows, row)
		}
	}
	slices.SortFunc(t.rows, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	return t, nil
}

// describes is how a comment begins that a table has: NAME (what of it): text.
var describes = regexp.MustCompile(`^(\w+)(?: \((.+?)\))?: (.*)$`)

// description takes apart the comment of a constant.
func description(c constant) (of, text string, err error) {
	if len(c.doc) > 0 {
		if found := describes.FindStringSubmatch(c.doc[0]); found != nil && found[1] == c.name {
			return found[2], found[3], nil
		}
	}
	return "", "", fmt.Errorf("the comment of %s does not begin as in %q", c.name, c.name+" (string): The GPU's UUID.")
}

// described is the table of the constants whose names begin with prefix. of is the head of
// what their comments have in parentheses, if they have it.
func described(all []constant, prefix, head, of string) (table, error) {
	t := table{head: []string{head, of, "Meaning"}}
	if of == "" {
		t.head = []string{head, "Meaning"}
	}
	var failed []error
	for _, c := range all {
		if !strings.HasPrefix(c.name, prefix) {
			continue
		}
		what, text, err := description(c)
		if err == nil && (what == "") != (of == "") {
			err = fmt.Errorf("the comment of %s has %q in parentheses", c.name, what)
		}
		row := []string{code(c.value), what, strings.TrimSuffix(text, ".")}
		if of == "" {
			row = slices.Delete(row, 1, 2)
		}
		t.rows, failed = append(t.rows, row), append(failed, err)
	}
	return t, errors.Join(failed...)
}

// events is the table of the reasons of Events.
func events(all []constant) (table, error) {
	t := table{head: []string{"Reason", "What it means", "What to do"}}
	var failed []error
	for _, c := range all {
		if !strings.HasPrefix(c.name, "Reason") {
			continue
		}
		on, text, err := description(c)
		isOn := strings.HasPrefix(on, "on: ")
		todo := ""
		if len(c.doc) == 2 {
			todo, _ = strings.CutPrefix(c.doc[1], "To do: ")
		}
		if err == nil && (!isOn || todo == "") {
			err = fmt.Errorf("the comment of %s does not say on what the Event is, or what to do: To do: ", c.name)
		}
		t.rows, failed = append(t.rows, []string{code(c.value), text, todo}), append(failed, err)
	}
	return t, errors.Join(failed...)
}

// config is the table of the fields of GpuConfig.
func config(root string) (table, error) {
	t := table{head: []string{"Field", "Default", "Meaning"}}
	var defaults map[string]any
	content, err := yaml.Marshal(v1alpha1.Default())
	if err != nil {
		return t, err
	}
	if err := yaml.Unmarshal(content, &defaults); err != nil {
		return t, err
	}
	files, err := parsed(filepath.Join(root, "pkg/apis/gpu/v1alpha1"))
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, is := n.(*ast.TypeSpec)
			if !is || spec.Name.Name != v1alpha1.Kind {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				name := regexp.MustCompile(`json:"(\w+)`).FindStringSubmatch(field.Tag.Value)
				if name == nil {
					continue
				}
				value := ""
				if set := defaults[name[1]]; set != nil {
					value = code(fmt.Sprint(set))
				}
				text := strings.TrimPrefix(strings.Join(paragraphs(field.Doc), " "), field.Names[0].Name+" ")
				t.rows = append(t.rows, []string{code(name[1]), value, upper(strings.TrimSuffix(text, "."))})
			}
			return false
		})
	}
	return t, err
}

// classes is the table of the DeviceClasses that the driver is installed with.
func classes() (table, error) {
	t := table{head: []string{"Class", "Gives"}}
	all, err := deviceclasses.All()
	slices.SortFunc(all, func(a, b *resourceapi.DeviceClass) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range all {
		t.rows = append(t.rows, []string{code(c.Name), plain(c.Annotations[v1alpha1.AnnotationDescription])})
	}
	return t, err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// rbacObject is as much of a role, or of what binds it, as the table needs.
type rbacObject struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Rules    []yaml.Node                 `yaml:"rules"`
	RoleRef  struct{ Kind, Name string } `yaml:"roleRef"`
	Subjects []struct{ Name string }     `yaml:"subjects"`
	// option is that of deployments/options which has it.
	option string
}

// id tells a role as what binds it names it.
func (o rbacObject) id() string { return o.Kind + "/" + o.Metadata.Name }

// rights is the table of all that the programs may do in the cluster, with the comments of the
// manifests' rules.
func rights(root string) (table, error) {
	t := table{head: []string{"Who", "May", "What for", "With the option"}}
	objects, err := rbacObjects(root)
	if err != nil {
		return t, err
	}
	who := map[string]string{}
	for _, o := range objects {
		for _, subject := range o.Subjects {
			who[o.RoleRef.Kind+"/"+o.RoleRef.Name] = subject.Name
		}
	}
	var failed []error
	for _, o := range objects {
		for i := range o.Rules {
			may, why, err := right(&o.Rules[i])
			if err == nil && who[o.id()] == "" {
				err = errors.New("nothing binds it")
			}
			if err != nil {
				failed = append(failed, fmt.Errorf("rule %d of %s: %w", i, o.id(), err))
				continue
			}
			t.rows = append(t.rows, []string{code(who[o.id()]), may, plain(why), code(o.option)})
		}
	}
	slices.SortStableFunc(t.rows, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	return t, errors.Join(failed...)
}

// right is what a rule permits, as kubectl writes it, and the comment above it.
func right(rule *yaml.Node) (may, why string, err error) {
	var r struct {
		APIGroups     []string `yaml:"apiGroups"`
		Resources     []string `yaml:"resources"`
		ResourceNames []string `yaml:"resourceNames"`
		Verbs         []string `yaml:"verbs"`
	}
	if err := rule.Decode(&r); err != nil {
		return "", "", err
	}
	var what []string
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			resource, sub, _ := strings.Cut(resource, "/")
			name := strings.TrimSuffix(resource+"."+group, ".")
			for _, part := range append([]string{sub}, r.ResourceNames...) {
				if part != "" {
					name += "/" + part
				}
			}
			what = append(what, code(name))
		}
	}
	why = uncommented(rule.HeadComment)
	if why == "" {
		return "", "", errors.New("no comment above it says what it is for")
	}
	return code(strings.Join(r.Verbs, ", ")) + " " + strings.Join(what, ", "), why, nil
}

// rbacObjects are the roles of deployments, and what binds them: those that are always there
// first.
func rbacObjects(root string) ([]rbacObject, error) {
	var out []rbacObject
	for _, pattern := range []string{"deployments/manifests/*.yaml", "deployments/options/*/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("read the roles: %w", err)
			}
			option := ""
			if strings.Contains(pattern, "options") {
				option = filepath.Base(filepath.Dir(file))
			}
			decoder := yaml.NewDecoder(bytes.NewReader(content))
			for {
				o := rbacObject{option: option}
				if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return nil, fmt.Errorf("read %s: %w", file, err)
				}
				if strings.Contains(o.Kind, "Role") {
					out = append(out, o)
				}
			}
		}
	}
	return out, nil
}

// uncommented is the last paragraph of a comment: what stands before an empty line is not
// about the value alone.
func uncommented(comment string) string {
	_, last, found := cutLast(comment, "\n\n")
	if !found {
		last = comment
	}
	var words []string
	for line := range strings.Lines(last) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.TrimSuffix(strings.Join(words, " "), ".")
}

func cutLast(text, separator string) (before, after string, found bool) {
	if at := strings.LastIndex(text, separator); at >= 0 {
		return text[:at], text[at+len(separator):], true
	}
	return text, "", false
}

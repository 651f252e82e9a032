// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// classes runs the command and returns what it prints.
func classes(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := command()
	c.Writer = &out
	err := c.Run(t.Context(), append([]string{"gpu-compat-controller", "classes"}, arguments...))
	return out.String(), err
}

func TestClassesArePrintedAsTheyCanBeApplied(t *testing.T) {
	published := deviceclasses.ClassLabel(strings.Repeat("N", 64))
	for name, test := range map[string]struct {
		arguments []string
		want      []string
	}{
		"one mode": {[]string{"--model", "NVIDIA A10", "--mode", "share"},
			[]string{"nvidia-a10", "share.nvidia-a10"}},
		"modes in any order": {[]string{"--model", "NVIDIA-A10", "--mode", "share", "--mode", "mps", "--mode", "share"},
			[]string{"mps.nvidia-a10", "nvidia-a10", "share.nvidia-a10"}},
		"models": {[]string{"--model", "Tesla T4", "--model", "NVIDIA A10", "--mode", "share"},
			[]string{"nvidia-a10", "share.nvidia-a10", "share.tesla-t4", "tesla-t4"}},
		"one model, twice": {[]string{"--model", "NVIDIA A10", "--model", "NVIDIA-A10", "--model", "NVIDIA A10",
			"--mode", "share"}, []string{"nvidia-a10", "share.nvidia-a10"}},
		"as GPUs publish it": {[]string{"--model", strings.Repeat("N", 80), "--mode", "mps"},
			[]string{"mps." + published, published}},
		"an odd name, one mode": {[]string{"--model", "Quadro RTX 6000/8000", "--mode", "mps"},
			[]string{"mps.quadro-rtx-6000-8000-e9054508", "quadro-rtx-6000-8000-e9054508"}},
	} {
		t.Run(name, func(t *testing.T) {
			printed, err := classes(t, test.arguments...)
			expect.NoError(t, err)
			var got []string
			for _, document := range strings.Split(printed, "---\n")[1:] {
				class := &resourceapi.DeviceClass{}
				expect.NoError(t, yaml.UnmarshalStrict([]byte(document), class))
				got = append(got, strings.TrimSuffix(class.Name, ".gpu.aliyun.com"))
				// Without the label, one that the controller made would stay the
				// controller's when this is applied over it.
				expect.Equal(t, "gitops", class.Labels["app.kubernetes.io/managed-by"], "class %s is managed by", class.Name)
			}
			expect.Equal(t, test.want, got, "classes")
		})
	}
}

func TestClassesThatCannotBe(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		want      string
	}{
		"no such mode": {[]string{"--model", "A10", "--mode", "shared"}, "--mode shared: not one of cgpu, " +
			"core-mem, exclusive, mps, share"},
		"no model": {[]string{"--model", ""}, "--model is empty"},
		"two models of one name": {[]string{"--model", "A10", "--model", "a10"}, `DeviceClass a10.gpu.aliyun.com would be ` +
			`for the models "A10" and "a10"`},
		"a mode of the cluster": {[]string{"--mode", "share"}, "--mode goes with --model"},
		"an argument":           {[]string{"A10"}, `unexpected argument "A10": name models with --model`},
	} {
		t.Run(name, func(t *testing.T) {
			printed, err := classes(t, test.arguments...)
			expect.Error(t, err, test.want)
			expect.Equal(t, "", printed, "printed all the same")
		})
	}
}

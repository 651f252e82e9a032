package legacy

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// names are requests and the names of their templates.
var names = map[string]Request{
	"gpushare.mem.main.3":           {Kind: Memory, Count: 1, Containers: []Container{{Name: "main", MemoryGiB: 3}}},
	"gpushare.mem.c0.1.c1.7":        {Kind: Memory, Count: 1, Containers: []Container{{Name: "c0", MemoryGiB: 1}, {Name: "c1", MemoryGiB: 7}}},
	"gpushare.mem-x4.main.8":        {Kind: Memory, Count: 4, Containers: []Container{{Name: "main", MemoryGiB: 8}}},
	"gpushare.mem-whole.main.15":    {Kind: Memory, Count: 1, Whole: true, Containers: []Container{{Name: "main", MemoryGiB: 15}}},
	"gpushare.mem-x2-whole.main.30": {Kind: Memory, Count: 2, Whole: true, Containers: []Container{{Name: "main", MemoryGiB: 30}}},
	"gpushare.core.main.10-30":      {Kind: CoreMemory, Count: 1, Containers: []Container{{Name: "main", MemoryGiB: 10, CoresPercent: 30}}},
	"gpushare.core-x2.m-1.4-200":    {Kind: CoreMemory, Count: 2, Containers: []Container{{Name: "m-1", MemoryGiB: 4, CoresPercent: 200}}},
	"gpushare.mem-x2.c0.2.c1.6":     {Kind: Memory, Count: 2, Containers: []Container{{Name: "c0", MemoryGiB: 2}, {Name: "c1", MemoryGiB: 6}}},
	"gpushare.gpu.main.2":           {Kind: Cards, Count: 1, Containers: []Container{{Name: "main", Cards: 2}}},
}

func TestNamesSayTheRequest(t *testing.T) {
	for name, request := range names {
		if got := request.Name(); got != name {
			t.Errorf("%+v has the name %s, want %s", request, got, name)
		}
		got, err := ParseName(name)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(request, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNamesThatAreNoRequest(t *testing.T) {
	for name, want := range map[string]string{
		"gpushare":                                              "not of the form",
		"gpushare.mem":                                          "not of the form",
		"gpushare.mem.main":                                     "not of the form",
		"other.mem.main.3":                                      "not of the form",
		"gpushare.tflops.main.3":                                `kind "tflops" is none of`,
		"gpushare.mem-fast.main.3":                              `a part "fast" that means nothing`,
		"gpushare.mem-whole-x2.main.4":                          `a part "x2" that means nothing`,
		"gpushare.mem-x.main.4":                                 "number of cards",
		"gpushare.mem-x1.main.4":                                `would have to be "gpushare.mem.main.4"`,
		"gpushare.mem-x33.main.33":                              "1 to 32 cards, not 33",
		"gpushare.mem-x-2.main.4":                               "number of cards",
		"gpushare.mem.main.03":                                  `would have to be "gpushare.mem.main.3"`,
		"gpushare.mem.main.+3":                                  "would have to be",
		"gpushare.mem.main.0":                                   "aliyun.com/gpu-mem must be from 1 to 999, not 0",
		"gpushare.mem.main.1000":                                "from 1 to 999, not 1000",
		"gpushare.mem.main.99999999999999999999":                "is not a whole number",
		"gpushare.mem.Main.3":                                   `container name "Main"`,
		"gpushare.mem..3":                                       `container name ""`,
		"gpushare.mem.main.3-20":                                "has 2 amounts",
		"gpushare.core.main.3":                                  "has 1 amounts",
		"gpushare.core.main.3-7":                                "must be a multiple of 5 on each card, not 7",
		"gpushare.core.main.3-0":                                "from 1 to 100, not 0",
		"gpushare.core.main.3-105":                              "from 1 to 100, not 105",
		"gpushare.core-x4.main.4-10":                            "invalid replica for resource aliyun.com/gpu-core.percentage,because 10 / 4 = 2.5",
		"gpushare.mem-x2.main.7":                                "invalid replica for resource aliyun.com/gpu-mem,because 7 / 2 = 3.5",
		"gpushare.mem-x2.a.2.b.3":                               "invalid replica for resource aliyun.com/gpu-mem,because 3 / 2 = 1.5",
		"gpushare.mem-x16.a.16.b.16.c.16":                       "1 to 32 shares, not 48",
		"gpushare.mem-x2." + strings.Repeat("a", 57) + ".2.b.2": "may have 56",
		"gpushare.gpu-x2.main.2":                                "whole cards are not spread",
		"gpushare.gpu-whole.main.2":                             "whole cards are whole",
		"gpushare.gpu.main.33":                                  "from 1 to 32, not 33",
		"gpushare.gpu.a.16.b.17":                                "1 to 32 cards, not 33",
		"gpushare.mem" + strings.Repeat(".a.1", 33):             "1 to 32 containers, not 33",
	} {
		if _, err := ParseName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// limits is a container with such limits, given as in "mem 3 core 20".
func limits(name, amounts string) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}}
	resources := map[string]corev1.ResourceName{"mem": ResourceMemory, "core": ResourceCores, "gpu": ResourceCards}
	fields := strings.Fields(amounts)
	for i := 0; i+1 < len(fields); i += 2 {
		c.Resources.Limits[resources[fields[i]]] = resource.MustParse(fields[i+1])
	}
	return c
}

func TestPodsAndTheirTemplates(t *testing.T) {
	sidecar := limits("side", "mem 1")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	long := strings.Repeat("a", 62)
	for name, test := range map[string]struct {
		labels           map[string]string
		init, containers []corev1.Container
		want             string // the template's name, or what the error says
	}{
		"nothing":                        {nil, nil, []corev1.Container{limits("c", "")}, ""},
		"zero is nothing":                {nil, nil, []corev1.Container{limits("c", "mem 0 core 0 gpu 0")}, ""},
		"memory":                         {nil, nil, []corev1.Container{limits("c", "mem 3")}, "gpushare.mem.c.3"},
		"memory and no compute":          {nil, nil, []corev1.Container{limits("c", "mem 3 core 0")}, "gpushare.mem.c.3"},
		"memory and compute":             {nil, nil, []corev1.Container{limits("c", "mem 3 core 20")}, "gpushare.core.c.3-20"},
		"cards":                          {nil, nil, []corev1.Container{limits("c", "gpu 2")}, "gpushare.gpu.c.2"},
		"two of three containers":        {nil, nil, []corev1.Container{limits("a", "mem 1"), limits("b", ""), limits("c", "mem 7")}, "gpushare.mem.a.1.c.7"},
		"sidecars come last":             {nil, []corev1.Container{sidecar}, []corev1.Container{limits("c", "mem 3")}, "gpushare.mem.c.3.side.1"},
		"init containers do not count":   {nil, []corev1.Container{limits("i", "mem 10G")}, []corev1.Container{limits("c", "mem 3")}, "gpushare.mem.c.3"},
		"four cards":                     {map[string]string{LabelCount: "4"}, nil, []corev1.Container{limits("c", "mem 8")}, "gpushare.mem-x4.c.8"},
		"four cards of two containers":   {map[string]string{LabelCount: "4"}, nil, []corev1.Container{limits("c", "mem 8"), limits("d", "mem 4")}, "gpushare.mem-x4.c.8.d.4"},
		"no number of cards":             {map[string]string{LabelCount: "0"}, nil, []corev1.Container{limits("c", "mem 8")}, "gpushare.mem.c.8"},
		"a whole card":                   {map[string]string{LabelPlacement: RequireWholeDevice}, nil, []corev1.Container{limits("c", "mem 15")}, "gpushare.mem-whole.c.15"},
		"labels do not matter for cards": {map[string]string{LabelCount: "x", LabelPlacement: "y"}, nil, []corev1.Container{limits("c", "gpu 3")}, "gpushare.gpu.c.3"},
		"only init":                      {nil, []corev1.Container{limits("i", "mem 2")}, []corev1.Container{limits("c", "")}, "only init containers"},
		"bytes":                          {nil, nil, []corev1.Container{limits("c", "mem 10G")}, "aliyun.com/gpu-mem 10G is not a plain whole number"},
		"half":                           {nil, nil, []corev1.Container{limits("c", "mem 0.5")}, "aliyun.com/gpu-mem 500m is not a plain whole number"},
		"seven percent":                  {nil, nil, []corev1.Container{limits("c", "mem 3 core 7")}, "must be a multiple of 5"},
		"compute alone":                  {nil, nil, []corev1.Container{limits("c", "core 20")}, "reqeust resources must include aliyun.com/gpu-mem"},
		"different resources":            {nil, nil, []corev1.Container{limits("a", "mem 1"), limits("b", "mem 1 core 5")}, "should be consistent for all containers"},
		"memory and cards":               {nil, nil, []corev1.Container{limits("a", "mem 1 gpu 1")}, "should be consistent for all containers"},
		"a count that is none":           {map[string]string{LabelCount: "x"}, nil, []corev1.Container{limits("c", "mem 8")}, `failed to parse request device count from pod label aliyun.com/gpu-count,reason: strconv.ParseInt: parsing "x"`},
		"seven on two cards":             {map[string]string{LabelCount: "2"}, nil, []corev1.Container{limits("c", "mem 7")}, "invalid replica for resource aliyun.com/gpu-mem,because 7 / 2 = 3.5"},
		"another placement":              {map[string]string{LabelPlacement: "any"}, nil, []corev1.Container{limits("c", "mem 8")}, "Invalid value of pod label ack.gpushare.placement:only support [require-whole-device]"},
		"names that do not fit into one": {nil, nil, []corev1.Container{limits(long+"a", "mem 1"), limits(long+"b", "mem 1"), limits(long+"c", "mem 1"), limits(long+"d", "mem 1")}, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(test.labels)}, Spec: corev1.PodSpec{InitContainers: test.init, Containers: test.containers}}
			request, err := FromPod(pod)
			switch {
			case err != nil:
				if test.want == "" || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q", err, test.want)
				}
			case request == nil:
				if test.want != "" {
					t.Errorf("it asks for nothing, want %s", test.want)
				}
			case request.Name() != test.want:
				t.Errorf("template %s, want %s", request.Name(), test.want)
			}
		})
	}
}

func TestClaimNameIsTaken(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{limits("c", "mem 3")}, ResourceClaims: []corev1.PodResourceClaim{{Name: ClaimName}}}}
	if _, err := FromPod(pod); err == nil || !strings.Contains(err.Error(), `a claim named "gpushare" already`) {
		t.Errorf("error %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// Who has the ClusterRole of docs/inspect.md may list all that the doctor looks at: what may not be
// listed is a warning, and a cluster in order would not end with 0.
func TestDoctorMayListWhatItLooksAt(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", nil)
	})
	s, err := cluster.Reader{Client: client}.Snapshot(t.Context())
	expect.NoError(t, err)
	const page = "docs/inspect.md"
	role := regexp.MustCompile(`kubectl create clusterrole \S+ --verb=\S*\blist\b\S* --resource=(\S+)`).FindStringSubmatch(
		files(t, "inspect.md")[page])
	if role == nil || len(s.Unread) < 10 {
		t.Fatalf("%s has the ClusterRole %v, the doctor looks at %v", page, role, s.Unread)
	}
	for _, list := range s.Unread {
		if !slices.Contains(strings.Split(role[1], ","), list) {
			t.Errorf("the doctor lists %s, which the ClusterRole of %s does not allow", list, page)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestReasons(t *testing.T) {
	plain := errors.New("no")
	for name, c := range map[string]struct {
		err  error
		want Reason
	}{
		"none":      {nil, ""},
		"of a step": {fmt.Errorf("around: %w", withReason(ReasonInvalid, plain)), ReasonInvalid},
		"the inner": {withReason(ReasonInvalid, fmt.Errorf("around: %w", withReason(ReasonNotServed, plain))),
			ReasonNotServed},
		"beside another": {errors.Join(withReason(ReasonNotStartable, plain), plain), ReasonNotStartable},
		"the API server": {withReason(ReasonInvalid, apierrors.NewForbidden(resourceapi.Resource("pods"), "p", plain)),
			ReasonAPIServer},
		"time":             {withReason(ReasonInvalid, fmt.Errorf("around: %w", context.DeadlineExceeded)), ReasonTimeout},
		"anything of ours": {plain, ReasonNode},
	} {
		expect.Equal(t, c.want, ReasonOf(c.err), "%s", name)
	}
	if err := withReason(ReasonInvalid, plain); err.Error() != "no" || !errors.Is(err, plain) {
		t.Errorf("with a reason %v is %v", plain, err)
	}
}

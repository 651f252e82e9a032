// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import "errors"

// ErrPodsUnread says that it is not known yet what pods without a claim hold.
var ErrPodsUnread = errors.New("the node's pods, some of which may hold GPUs without a claim, have not been read " +
	"from the API server yet: see the node's Events; the kubelet tries again by itself")

package isolation

import (
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// misconfigured is a back end that cannot limit anything, because a setting that
// it goes by is wrong.
type misconfigured struct {
	Backend
	// reason names the setting and what it may be.
	reason error
}

func (b misconfigured) Check(string) error { return b.reason }

// Edits without limits do not depend on the setting.
func (b misconfigured) Edits(r Request) (*specs.ContainerEdits, error) {
	if limited(r.Grants[0]) {
		return nil, b.reason
	}
	return b.Backend.Edits(r)
}

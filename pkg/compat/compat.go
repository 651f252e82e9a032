// Package compat holds what the parts of gpu-compat-controller have in common.
package compat

// Name is the controller's: of its Lease and Events, as the field manager under which
// the API server records what it wrote, and as the value of ManagedByLabel on what it
// made, of which it changes and removes no other.
const (
	Name           = "gpu-compat-controller"
	ManagedByLabel = "app.kubernetes.io/managed-by"
)

// SPDX-License-Identifier: Apache-2.0

// Package borders has no code: its tests state which package of this module may import
// which, and hold docs/internals/architecture.md's picture to the imports.
package borders

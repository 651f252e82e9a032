// SPDX-License-Identifier: Apache-2.0

// Package borders has no code: its tests state which package of this module may import
// which, and hold docs/internals/architecture.md - its pictures, its lists - to the code.
package borders

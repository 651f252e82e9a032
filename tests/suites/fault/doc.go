// SPDX-License-Identifier: Apache-2.0

// Package fault kills the process that prepares claims, for real and at any
// moment, and looks at what the next one makes of what is left on disk.
package fault

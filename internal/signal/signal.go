// SPDX-License-Identifier: Apache-2.0

// Package signal wakes loops.
package signal

// Send wakes whoever receives from c, which has room for one signal: at once, or when it
// receives next. It does not block, and signals that nobody has received are one.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

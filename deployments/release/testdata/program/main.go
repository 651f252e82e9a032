// SPDX-License-Identifier: Apache-2.0

// Program does nothing: it is small, and Go has built it.
package main

func main() {}

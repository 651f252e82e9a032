// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"fmt"
	"slices"
)

// OneOf returns the Validator of a flag that has one of these values.
func OneOf[T ~string](all ...T) func(string) error {
	return func(value string) error {
		if !slices.Contains(all, T(value)) {
			return fmt.Errorf("unknown value %q: want one of %q", value, all)
		}
		return nil
	}
}

// AtLeast returns the Validator of a flag whose values are no less.
func AtLeast[T cmp.Ordered](least T) func(T) error {
	return func(value T) error {
		if value < least {
			return fmt.Errorf("%v is less than %v", value, least)
		}
		return nil
	}
}

// Parsed returns the Validator of a flag whose values are those that parse takes.
func Parsed[T any](parse func(string) (T, error)) func(string) error {
	return func(value string) error {
		_, err := parse(value)
		return err
	}
}

// SPDX-License-Identifier: Apache-2.0

package gpu

// WholeCores is all of a GPU's compute, in percent.
const WholeCores = 100

// Amount is a part of one GPU: what there is of it, what is taken, what is left.
type Amount struct {
	// Units is memory in GiB units, Cores compute in percent of the GPU.
	Units, Cores int64
	// Shares is by how many containers the part is shared, or can be.
	Shares int64
}

// Plus is both amounts together.
func (a Amount) Plus(b Amount) Amount {
	return Amount{Units: a.Units + b.Units, Cores: a.Cores + b.Cores, Shares: a.Shares + b.Shares}
}

// Minus is what is left of the amount without the other, which may be more than there was: then it is below 0.
func (a Amount) Minus(b Amount) Amount {
	return Amount{Units: a.Units - b.Units, Cores: a.Cores - b.Cores, Shares: a.Shares - b.Shares}
}

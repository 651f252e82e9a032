// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"slices"
	"testing"
)

func prefixes(all ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, 0, len(all))
	for _, s := range all {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return parsed
}

func TestChooseNetwork(t *testing.T) {
	tests := map[string]struct {
		inUse []netip.Prefix
		want  int
	}{
		"a machine that uses none of it":      {prefixes("127.0.0.1/8", "192.0.2.2/24"), 0},
		"another cluster":                     {prefixes("10.96.0.1/32", "10.88.0.1/32"), 1},
		"one whose nodes are not there yet":   {prefixes("10.96.0.1/32"), 1},
		"the lowest that is free":             {prefixes("10.96.0.1/32", "10.96.2.1/32"), 1},
		"somebody's pods":                     {prefixes("10.160.3.0/24"), 1},
		"a network that holds several":        {prefixes("10.88.0.0/22"), 4},
		"a route to a network without nodes":  {prefixes("10.162.0.0/16", "10.160.0.0/15"), 3},
		"podman's bridge":                     {prefixes("10.88.0.0/16"), 32},
		"a VPN":                               {prefixes("10.0.0.0/8", "172.17.0.0/16", "172.24.0.0/16"), 33},
		"all that is private":                 {prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"), 40},
		"an invalid prefix, as of no network": {[]netip.Prefix{{}}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := chooseNetwork(test.inUse)
			if err != nil {
				t.Fatal(err)
			}
			if got.Index != test.want {
				t.Errorf("got network %d, want %d", got.Index, test.want)
			}
		})
	}
}

func TestChooseNetworkFindsNone(t *testing.T) {
	if got, err := chooseNetwork(prefixes("10.0.0.0/8", "172.16.0.0/12", "198.18.0.1/32")); err == nil {
		t.Errorf("got network %d where all addresses are in use", got.Index)
	}
}

func TestNetworksShareNoAddress(t *testing.T) {
	for a := range maxNetworks() {
		for b := range a {
			if !(Network{Index: a}).free((Network{Index: b}).ranges()) {
				t.Fatalf("networks %d and %d overlap", a, b)
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, test := range []struct {
		index, node        int
		api, address, pods string
	}{
		{3, 2, "10.96.3.1", "10.88.3.2", "10.163.2.0/24"},
		{3, 10, "10.96.3.1", "10.88.3.10", "10.163.10.0/24"},
		{31, 250, "10.96.31.1", "10.88.31.250", "10.191.250.0/24"},
		{32, 1, "172.22.0.1", "172.23.0.1", "172.24.1.0/24"},
		{39, 1, "172.22.7.1", "172.23.7.1", "172.31.1.0/24"},
		{40, 7, "198.18.0.1", "198.18.1.7", "198.19.7.0/24"},
	} {
		network := Network{Index: test.index}
		got := []string{network.api().String(), network.node(test.node).String(), network.pods(test.node).String()}
		if want := []string{test.api, test.address, test.pods}; !slices.Equal(got, want) {
			t.Errorf("network %d: got %s, want %s", test.index, got, want)
		}
	}
}

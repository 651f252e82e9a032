package cluster

import (
	"net/netip"
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
	if got, err := chooseNetwork(prefixes("10.0.0.0/8")); err == nil {
		t.Errorf("got network %d where all addresses are in use", got.Index)
	}
}

func TestNetworksShareNoAddress(t *testing.T) {
	for a := range maxNetworks {
		for b := range a {
			if !(Network{Index: a}).free((Network{Index: b}).ranges()) {
				t.Fatalf("networks %d and %d overlap", a, b)
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	network := Network{Index: 3}
	for got, want := range map[string]string{
		network.api().String():    "10.96.3.1",
		network.node(2).String():  "10.88.3.2",
		network.pods(2).String():  "10.163.2.0/24",
		network.nodes().String():  "10.88.3.0/24",
		network.api().String():    "10.96.3.1",
		network.pods(0).String():  "10.163.0.0/24",
		network.node(10).String(): "10.88.3.10",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressRange is where clusters may have their addresses: cluster number K of a range
// has the Kth network of each kind, counted from the first.
type addressRange struct {
	clusters int
	// services and nodes are the first networks of 24 bits, pods that of 16.
	services, nodes, pods [4]byte
}

// addressRanges are tried in turn: on many machines all of 10.0.0.0/8 leads
// somewhere, to a VPN for one, and on some 172.16.0.0/12 does too. What is left then is
// kept for measurements (RFC 2544), and not routed.
func addressRanges() []addressRange {
	return []addressRange{
		{32, [4]byte{10, 96}, [4]byte{10, 88}, [4]byte{10, 160}},
		{8, [4]byte{172, 22}, [4]byte{172, 23}, [4]byte{172, 24}},
		{1, [4]byte{198, 18, 0}, [4]byte{198, 18, 1}, [4]byte{198, 19}},
	}
}

// maxNetworks is how many clusters can be up at once on one machine.
func maxNetworks() int {
	sum := 0
	for _, r := range addressRanges() {
		sum += r.clusters
	}
	return sum
}

// Network is a cluster's share of the machine's addresses. All of them are on the
// loopback interface or on pods' own interfaces; none is announced anywhere.
type Network struct {
	// Index tells clusters on one machine apart, from 0.
	Index int `json:"index"`
}

// place is the range of the network, and which of its clusters it is for.
func (n Network) place() (r addressRange, k byte) {
	index := n.Index
	for _, r = range addressRanges() {
		if index < r.clusters {
			break
		}
		index -= r.clusters
	}
	return r, byte(index)
}

// services is where the cluster IPs of services come from.
func (n Network) services() netip.Prefix {
	r, k := n.place()
	r.services[2] += k
	return netip.PrefixFrom(netip.AddrFrom4(r.services), 24)
}

// api is the address of the API server: the cluster IP that Kubernetes gives the
// service of the API, the first one. Pods are told to use it, and since it is an
// address of the loopback interface it needs no proxy and no packet rules.
func (n Network) api() netip.Addr { return n.services().Addr().Next() }

// control is where the parts of the control plane serve that only each other and
// root speak to. An address of its own, rather than 127.0.0.1, lets each cluster
// have them on their usual ports, which no outgoing connection takes by chance.
func (n Network) control() netip.Addr {
	return netip.AddrFrom4([4]byte{127, 88, byte(n.Index), 1})
}

func (n Network) nodes() netip.Prefix {
	r, k := n.place()
	r.nodes[2] += k
	return netip.PrefixFrom(netip.AddrFrom4(r.nodes), 24)
}

// node is the address of the node with a number from 1.
func (n Network) node(number int) netip.Addr {
	address := n.nodes().Addr().As4()
	address[3] = byte(number)
	return netip.AddrFrom4(address)
}

// pods is where the pods of the node with a number from 1 have their addresses.
func (n Network) pods(number int) netip.Prefix {
	r, k := n.place()
	r.pods[1] += k
	r.pods[2] = byte(number)
	return netip.PrefixFrom(netip.AddrFrom4(r.pods), 24)
}

func (n Network) ranges() []netip.Prefix {
	allPods := netip.PrefixFrom(n.pods(0).Addr(), 16)
	return []netip.Prefix{n.services(), n.nodes(), allPods}
}

// chooseNetwork gives the first network that touches none of the prefixes in use.
func chooseNetwork(inUse []netip.Prefix) (Network, error) {
	for index := range maxNetworks() {
		network := Network{Index: index}
		if network.free(inUse) {
			return network, nil
		}
	}
	return Network{}, fmt.Errorf("no free addresses among 10.88.K.0/24 with 10.96.K.0/24 and 10.(160+K).0.0/16, "+
		"172.23.K.0/24 with 172.22.K.0/24 and 172.(24+K).0.0/16, or 198.18.0.0/15: this machine has addresses in, or "+
		"routes to, %v; take down clusters you no longer need, or the routes", inUse)
}

func (n Network) free(inUse []netip.Prefix) bool {
	for _, own := range n.ranges() {
		for _, other := range inUse {
			if own.Overlaps(other) {
				return false
			}
		}
	}
	return true
}

// usedPrefixes are the addresses of this machine and the networks it has a route
// to, other than the default route.
func usedPrefixes() ([]netip.Prefix, error) {
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the machine's routes: %w", err)
	}
	var used []netip.Prefix
	for _, address := range addresses {
		used = append(used, prefixOf(address.IPNet))
	}
	for _, route := range routes {
		if prefix := prefixOf(route.Dst); prefix.IsValid() && prefix.Bits() > 0 {
			used = append(used, prefix)
		}
	}
	return used, nil
}

func prefixOf(network *net.IPNet) netip.Prefix {
	if network == nil {
		return netip.Prefix{}
	}
	address, ok := netip.AddrFromSlice(network.IP.To4())
	ones, _ := network.Mask.Size()
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(address, ones)
}

// addAddress puts an address on the loopback interface; it is no error when it is
// there already.
func addAddress(address netip.Addr) error {
	link, wanted, err := onLoopback(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, wanted); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to the loopback interface: %w", address, err)
	}
	return nil
}

// removeAddress undoes addAddress; it is no error when the address is gone.
func removeAddress(address netip.Addr) error {
	link, wanted, err := onLoopback(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(link, wanted); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %s from the loopback interface: %w", address, err)
	}
	return nil
}

func onLoopback(address netip.Addr) (netlink.Link, *netlink.Addr, error) {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	single := &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(32, 32)}
	// Host scope: the kernel then never takes it as the source of what leaves
	// the machine.
	return link, &netlink.Addr{IPNet: single, Scope: unix.RT_SCOPE_HOST}, nil
}

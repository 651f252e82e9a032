// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

// Rates for clients of the API server. The defaults of Kubernetes are made for
// clusters of thousands of nodes; here they would only slow the start and hide
// what the driver itself costs.
const (
	clientQPS   = "500"
	clientBurst = "1000"
)

// controlPlaneNice is the weight of the control plane against the nodes, as of setpriority(2). A
// control plane has machines of its own elsewhere; here it shares two processors with fourteen nodes, whose
// start would keep it from answering for longer than a request may take.
const controlPlaneNice = -10

// memoryLimits are the sizes from which a program collects garbage as often as it must (runtime/debug.SetMemoryLimit).
// With seldomCollected alone, 4/5 of its memory is garbage: with slices of 5000 nodes, that exceeds a machine of 24
// GiB.
var memoryLimits = map[string]string{
	"kube-apiserver": "8GiB", "kube-scheduler": "6GiB", "kube-controller-manager": "3GiB",
}

// startControlPlane starts etcd, API server, scheduler and controller manager. They
// may not be ready when it returns.
func (c *Cluster) startControlPlane(ctx context.Context, s *state) error {
	for _, dir := range []string{"logs", "pki", "etcd", "images", "bin", "nodes"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return fmt.Errorf("make the cluster's directories: %w", err)
		}
	}
	if err := os.Chmod(c.path("pki"), 0o700); err != nil {
		return fmt.Errorf("keep the cluster's keys private: %w", err)
	}
	if err := c.writeCredentials(s); err != nil {
		return err
	}
	scheduler := lines(
		"apiVersion: kubescheduler.config.k8s.io/v1",
		"kind: KubeSchedulerConfiguration",
		"leaderElection: {leaderElect: false}",
		// 10 by default: what a pod waits for comes and goes faster here.
		"podMaxBackoffSeconds: 2",
		"clientConnection:",
		"  kubeconfig: "+quote(c.path("pki", "scheduler.kubeconfig")),
		"  qps: "+clientQPS,
		"  burst: "+clientBurst,
	)
	if err := writeFiles(map[string]string{c.path("scheduler.yaml"): scheduler}); err != nil {
		return err
	}
	spec := sandbox.Spec{Name: "control-plane", Services: c.controlServices(s)}
	err := sandbox.Start(ctx, spec, c.log("control-plane"), func(first proc.Process) error {
		return c.update(s, func() { s.Control = first })
	})
	if err != nil {
		return &StepError{Step: "start the control plane", Log: c.log("control-plane"), Err: err}
	}
	return nil
}

// writeCredentials makes the certificates of the control plane and the kubeconfigs
// of its parts and of the administrator.
func (c *Cluster) writeCredentials(s *state) error {
	ca, err := loadAuthority(c.path("pki"))
	if err != nil {
		return err
	}
	if _, err := newKey(c.path("pki", "service-account.key")); err != nil {
		return err
	}
	api, control := s.Network.api(), s.Network.control()
	subjects := map[string]subject{
		"etcd": {User: "etcd", Addresses: []netip.Addr{control}},
		"apiserver": {
			User: "kube-apiserver",
			Names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local"},
			Addresses: []netip.Addr{api},
		},
		"apiserver-client":   {User: "kube-apiserver-client", Groups: []string{"system:masters"}},
		"admin":              {User: "admin", Groups: []string{"system:masters"}},
		"controller-manager": {User: "system:kube-controller-manager"},
		"scheduler":          {User: "system:kube-scheduler"},
	}
	for name, subject := range subjects {
		if err := ca.issue(c.path("pki", name), subject); err != nil {
			return err
		}
	}
	for user, path := range map[string]string{
		"controller-manager": c.path("pki", "controller-manager.kubeconfig"),
		"scheduler":          c.path("pki", "scheduler.kubeconfig"),
		"admin":              c.Kubeconfig(),
	} {
		if err := writeKubeconfig(path, s.Network, c.path("pki", "ca.crt"), c.path("pki", user)); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes a kubeconfig that holds all it needs, so that it can be
// copied elsewhere on the machine.
func writeKubeconfig(path string, network Network, caPath, base string) error {
	encoded := map[string]string{}
	for name, file := range map[string]string{"ca": caPath, "cert": base + ".crt", "key": base + ".key"} {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("write kubeconfig %s: %w", path, err)
		}
		encoded[name] = base64.StdEncoding.EncodeToString(content)
	}
	content := lines(
		"apiVersion: v1",
		"kind: Config",
		"clusters:",
		"- name: gpushare",
		"  cluster:",
		"    server: https://"+network.api().String(),
		"    certificate-authority-data: "+encoded["ca"],
		"users:",
		"- name: "+filepath.Base(base),
		"  user:",
		"    client-certificate-data: "+encoded["cert"],
		"    client-key-data: "+encoded["key"],
		"contexts:",
		"- name: gpushare",
		"  context: {cluster: gpushare, user: "+filepath.Base(base)+"}",
		"current-context: gpushare",
	)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// controlServices are the control plane's programs.
func (c *Cluster) controlServices(s *state) []sandbox.Service {
	program := func(name string) string { return filepath.Join(s.Components["kubernetes"], name) }
	pki := func(name string) string { return c.path("pki", name) }
	api, control := s.Network.api().String(), s.Network.control().String()
	etcdURL, etcdPeerURL := "https://"+control+":2379", "https://"+control+":2380"
	services := []sandbox.Service{
		{
			Args: []string{
				program("etcd"), "--name=etcd", "--data-dir=" + c.path("etcd"),
				// What it holds is worth nothing after a crash of the machine.
				"--unsafe-no-fsync",
				"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
				"--listen-peer-urls=" + etcdPeerURL, "--initial-advertise-peer-urls=" + etcdPeerURL,
				"--initial-cluster=etcd=" + etcdPeerURL,
				// Who writes to etcd is root on this machine.
				"--client-cert-auth", "--trusted-ca-file=" + pki("ca.crt"), "--cert-file=" + pki("etcd.crt"), "--key-file=" +
					pki("etcd.key"),
				"--peer-client-cert-auth", "--peer-trusted-ca-file=" + pki("ca.crt"), "--peer-cert-file=" + pki("etcd.crt"),
				"--peer-key-file=" + pki("etcd.key"),
			},
			Log: c.log("etcd"),
		},
		{
			Args: []string{
				program("kube-apiserver"),
				"--bind-address=" + api, "--secure-port=443", "--advertise-address=" + api,
				// The service's cluster IP is the server's own address, so the
				// service needs no endpoints.
				"--endpoint-reconciler-type=none",
				"--service-cluster-ip-range=" + s.Network.services().String(),
				"--etcd-servers=" + etcdURL, "--etcd-cafile=" + pki("ca.crt"),
				"--etcd-certfile=" + pki("apiserver-client.crt"), "--etcd-keyfile=" + pki("apiserver-client.key"),
				"--client-ca-file=" + pki("ca.crt"),
				"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
				"--kubelet-certificate-authority=" + pki("ca.crt"),
				"--kubelet-client-certificate=" + pki("apiserver-client.crt"), "--kubelet-client-key=" +
					pki("apiserver-client.key"),
				"--kubelet-preferred-address-types=InternalIP",
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + pki("service-account.key"), "--service-account-signing-key-file=" +
					pki("service-account.key"),
				"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
				"--allow-privileged=true",
			},
			Log:   c.log("kube-apiserver"),
			After: []string{"tcp:" + control + ":2379"},
		},
		{
			Args: []string{
				program("kube-controller-manager"),
				"--kubeconfig=" + pki("controller-manager.kubeconfig"),
				"--authentication-kubeconfig=" + pki("controller-manager.kubeconfig"),
				"--authorization-kubeconfig=" + pki("controller-manager.kubeconfig"),
				"--bind-address=" + control, "--secure-port=10257",
				"--leader-elect=false", "--use-service-account-credentials",
				"--service-account-private-key-file=" + pki("service-account.key"), "--root-ca-file=" + pki("ca.crt"),
				"--kube-api-qps=" + clientQPS, "--kube-api-burst=" + clientBurst,
				// Its default is a directory that it makes on the machine.
				"--flex-volume-plugin-dir=" + c.path("volume-plugins"),
			},
			Log:   c.log("kube-controller-manager"),
			After: []string{"tcp:" + api + ":443"},
		},
		{
			Args: []string{
				program("kube-scheduler"), "--config=" + c.path("scheduler.yaml"),
				"--authentication-kubeconfig=" + pki("scheduler.kubeconfig"),
				"--authorization-kubeconfig=" + pki("scheduler.kubeconfig"),
				"--bind-address=" + control, "--secure-port=10259",
			},
			Log:   c.log("kube-scheduler"),
			After: []string{"tcp:" + api + ":443"},
		},
	}
	for i := range services {
		name := filepath.Base(services[i].Args[0])
		services[i].Env = []string{seldomCollected}
		if limit := memoryLimits[name]; limit != "" {
			services[i].Env = append(services[i].Env, "GOMEMLIMIT="+limit)
		}
		services[i].Nice = controlPlaneNice
		switch name {
		case "kube-apiserver":
			services[i].Args = slices.Concat(services[i].Args, s.gateFlags(), s.apiFlags())
		case "kube-controller-manager", "kube-scheduler":
			services[i].Args = append(services[i].Args, s.gateFlags()...)
		}
	}
	return services
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"

	kubeletHealthPort = 10248

	pauseImage = "localhost/pause:latest"
	probeImage = "localhost/gpu-probe:latest"
)

// nodeFiles are the configuration files of a node, by path in its root.
func nodeFiles(network Network, node *nodeState, cgroupRoot, snapshotter string) (map[string]string, error) {
	podNetwork, err := json.MarshalIndent(podNetworkConfig(network, node), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the pod network of node %s: %w", node.Name, err)
	}
	kubelet, err := json.MarshalIndent(kubeletConfig(network, node, cgroupRoot), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write kubelet's configuration of node %s: %w", node.Name, err)
	}
	id := sha256.Sum256([]byte(node.Name))
	return map[string]string{
		"etc/hostname": lines(node.Name),
		"etc/hosts": lines("127.0.0.1 localhost", "::1 localhost", network.node(node.Number).String()+
			" "+node.Name),
		"etc/machine-id": lines(hex.EncodeToString(id[:16])),
		"etc/os-release": lines(`ID=gpushare-node`, `NAME="gpushare test node"`,
			`PRETTY_NAME="gpushare test node"`),
		"etc/resolv.conf":                "",
		"etc/cni/net.d/10-pods.conflist": string(podNetwork),
		"etc/containerd/config.toml":     containerdConfig(snapshotter),
		"etc/kubernetes/kubelet.yaml":    string(kubelet),
	}, nil
}

// podNetworkConfig gives each pod a link of its own to the machine. Pods reach the
// API server and are reached from the machine, but do not reach each other: that
// would take forwarding, which is a setting of the whole machine.
func podNetworkConfig(network Network, node *nodeState) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []any{map[string]any{
			"type": "ptp",
			"ipam": map[string]any{
				"type":   "host-local",
				"ranges": []any{[]any{map[string]any{"subnet": network.pods(node.Number).String()}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}
}

func containerdConfig(snapshotter string) string {
	return lines(
		`version = 3`,
		`root = `+quote("/"+containerdDir),
		`state = "/run/containerd"`,
		// A containerd that cannot serve kubelet ends, to be started again.
		`required_plugins = ["io.containerd.grpc.v1.cri"]`,
		`[grpc]`,
		`  address = `+quote(containerdSocket),
		`[plugins."io.containerd.cri.v1.images"]`,
		`  snapshotter = `+quote(snapshotter),
		`  stats_collect_period = 60`,
		`[plugins."io.containerd.cri.v1.images".pinned_images]`,
		`  sandbox = `+quote(pauseImage),
		`[plugins."io.containerd.cri.v1.runtime"]`,
		`  cdi_spec_dirs = ["/etc/cdi", "/run/cdi"]`,
		// By default it asks every shim each second: a quarter of its own time, and of theirs.
		`  stats_collect_period = "60s"`,
		// Root without CAP_SYS_RESOURCE may not lower the score.
		`  restrict_oom_score_adj = true`,
		`  disable_apparmor = true`,
		`[plugins."io.containerd.cri.v1.runtime".cni]`,
		`  bin_dirs = ["/opt/cni/bin"]`,
		`  conf_dir = "/etc/cni/net.d"`,
		`  use_internal_loopback = true`,
		`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]`,
		`  runtime_type = "io.containerd.runc.v2"`,
		`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]`,
		`  BinaryName = `+quote(programsDir+"/runc/runc"),
		`  SystemdCgroup = false`,
	)
}

// kubeletConfig is a KubeletConfiguration. All nodes share the machine's network,
// so each listens on its own address only.
func kubeletConfig(network Network, node *nodeState, cgroupRoot string) map[string]any {
	address := network.node(node.Number).String()
	config := map[string]any{
		"apiVersion":         "kubelet.config.k8s.io/v1beta1",
		"kind":               "KubeletConfiguration",
		"address":            address,
		"healthzBindAddress": address,
		"healthzPort":        kubeletHealthPort,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": "/etc/kubernetes/ca.crt"},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              "/etc/kubernetes/kubelet.crt",
		"tlsPrivateKeyFile":        "/etc/kubernetes/kubelet.key",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               cgroupRoot,
		"enforceNodeAllocatable":   []string{"pods"},
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"oomScoreAdj":              0,
		"makeIPTablesUtilChains":   false,
		"resolvConf":               "",
		"kubeAPIQPS":               500,
		"kubeAPIBurst":             1000,
		// The machine's disk may well be fuller than kubelet likes, and images
		// it would remove cannot be pulled again.
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"evictionHard": map[string]string{
			"memory.available":  "100Mi",
			"nodefs.available":  "1%",
			"nodefs.inodesFree": "1%",
			"imagefs.available": "1%",
		},
		"volumePluginDir": "/var/lib/kubelet/volume-plugins",
	}
	if !node.StockTimers {
		maps.Copy(config, shortTimers())
	}
	return config
}

// shortTimers are the parts of a KubeletConfiguration that say how long kubelet waits before it
// tries again what has failed: up to a minute and a half for a pod whose claims could not be
// prepared, and up to five minutes for a container that ends again and again. Tests would wait
// as long. The second takes the gate KubeletCrashLoopBackOffMax, which is on from 1.35.
func shortTimers() map[string]any {
	return map[string]any{
		"syncFrequency":    "15s",
		"crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "5s"},
	}
}

func kubeletArgs(network Network, node *nodeState) []string {
	args := []string{
		programsDir + "/kubernetes/kubelet",
		"--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
		"--hostname-override=" + node.Name,
		"--node-ip=" + network.node(node.Number).String(),
		// What its containers use, which nothing here asks for.
		"--housekeeping-interval=60s",
	}
	if node.Mode != "" {
		args = append(args, "--node-labels="+ModeLabel+"="+node.Mode)
	}
	return args
}

// quote writes a string as TOML and YAML read it.
func quote(s string) string { return fmt.Sprintf("%q", s) }

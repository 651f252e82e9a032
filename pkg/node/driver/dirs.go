// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/hostdir"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
)

const (
	// dirInterval is how often the directories are looked at, which costs some thirty system
	// calls: no event tells that one was mounted over.
	dirInterval = 5 * time.Second
)

// sharedDir is a directory that the plugin shares with another program of the host, and
// the setting that names it.
type sharedDir struct {
	hostdir.Dir
	setting string
	// without says what does not work without it.
	without string
	// aside says that GPUs can be used without it, and that what uses it says where it
	// was never there: only its loss counts.
	aside bool
}

func (a *agent) sharedDirs() []sharedDir {
	dir := func(path, setting, without string) sharedDir {
		return sharedDir{Dir: hostdir.Dir{Path: path, HostRoot: a.GPUs.HostRoot}, setting: setting, without: without}
	}
	aside := func(path, setting, without string) sharedDir {
		d := dir(path, setting, without)
		d.ReadOnly, d.aside = true, true
		return d
	}
	return []sharedDir{
		dir(a.CDIDir, "CDI_DIR", "the container runtime finds no GPUs of any claim"),
		dir(a.PluginDir, "KUBELET_PLUGINS_DIR", "the kubelet cannot ask the plugin to prepare claims"),
		dir(a.RegistrarDir, "KUBELET_REGISTRAR_DIR", "the kubelet does not find the plugin"),
		aside(a.Isolation.MPSDir, "MPS_DIR", "nothing is known of the MPS daemons"),
		aside(filepath.Dir(a.PodResources.Socket), "KUBELET_POD_RESOURCES_SOCKET",
			"it is not known which GPUs pods of a device plugin have"),
	}
}

// sockets are the plugin's, by which the kubelet knows and asks it.
func (c Config) sockets() []string { return []string{c.registrarSocket(), c.draSocket()} }

// registrarSocket and draSocket are as the helper names them.
func (c Config) registrarSocket() string {
	name := v1alpha1.DriverName + "-reg.sock"
	if c.PodUID != "" {
		name = kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistrarDir, v1alpha1.DriverName, c.PodUID)
	}
	return filepath.Join(c.RegistrarDir, filepath.Base(name))
}

func (c Config) draSocket() string {
	name := "dra.sock"
	if c.PodUID != "" {
		name = "dra-" + string(c.PodUID) + ".sock"
	}
	return filepath.Join(c.PluginDir, name)
}

// usability knows whether a container with any GPU of the node could start: nobody else
// may see a directory of the plugin's, or device nodes may be missing. What may pass by
// itself is not among it.
type usability struct {
	// startable looks at the device nodes of the GPUs as they were read last.
	startable func() error
	// tell tells the publisher.
	tell      func(why error)
	publisher *publish.Publisher

	mu sync.Mutex
	// gone says which directory was last seen not to be the host's, nil if none was; blind
	// why the container runtime finds no CDI specs, nil if it does.
	gone, blind error
}

// SetMachine tells the publisher what GPUs there are, and before whether they can be used.
func (u *usability) SetMachine(m *gpu.Machine) {
	u.note(func() {})
	u.publisher.SetMachine(m)
}

// looked is told what a look at the directories found.
func (u *usability) looked(gone error) { u.note(func() { u.gone = gone }) }

// asked is told what the container runtime said.
func (u *usability) asked(blind error) { u.note(func() { u.blind = blind }) }

// note makes a change and tells the publisher what follows.
func (u *usability) note(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change()
	why := cmp.Or(u.gone, u.blind)
	if why == nil {
		if err := u.startable(); err != nil {
			why = fmt.Errorf("NVIDIA_DEV_ROOT: no container with any of the GPUs could start: %w", err)
		}
	}
	u.tell(why)
}

// watchDirs ends the process when a directory or socket is lost: a container that is
// restarted has the directories mounted again, which the container runtime makes if
// need be. What was wrong from the start only is told, since restarting would not
// help.
func (a *agent) watchDirs(ctx context.Context, w *dirWatch, usable *usability) {
	beat.Until(ctx, clock.RealClock{}, dirInterval, func(ctx context.Context) {
		found := w.look()
		usable.looked(found.gone)
		switch {
		case ctx.Err() != nil:
		case found.lost != nil:
			klog.FromContext(ctx).Error(found.lost, "What the plugin shares with the host is lost, restarting")
			a.events.Warn(v1alpha1.ReasonDirectoryLost, "The plugin restarts: "+found.lost.Error())
			a.fail(fmt.Errorf("restart: %w", found.lost))
		case found.wrong != nil:
			a.events.Warn(v1alpha1.ReasonDirectoryWrong, found.wrong.Error())
		default:
			a.events.Clear(v1alpha1.ReasonDirectoryWrong)
		}
	})
}

// dirWatch remembers what was sound.
type dirWatch struct {
	dirs    []sharedDir
	sockets []string
	sound   map[string]bool
	// unregistered says why the kubelet seems not to find the plugin, nil if it does.
	unregistered func() error
}

func newDirWatch(dirs []sharedDir, sockets []string, unregistered func() error) *dirWatch {
	return &dirWatch{dirs: dirs, sockets: sockets, sound: map[string]bool{}, unregistered: unregistered}
}

// dirsFound is what a look at the directories and sockets found.
type dirsFound struct {
	// lost is what was sound and is not any more, wrong what is wrong otherwise.
	lost, wrong error
	// gone is the first directory that is not the host's, be it among the lost or the
	// wrong.
	gone error
}

func (w *dirWatch) look() dirsFound {
	var found dirsFound
	var losses, wrongs []error
	for _, d := range w.dirs {
		err := d.Check()
		if err == nil {
			w.sound[d.Path] = true
			continue
		}
		gone := hostdir.Gone(err)
		err = fmt.Errorf("%s: %w: %s", d.setting, err, d.without)
		if gone && !d.aside && found.gone == nil {
			found.gone = err
		}
		switch {
		case gone && w.sound[d.Path]:
			losses = append(losses, err)
		case !d.aside:
			wrongs = append(wrongs, fmt.Errorf("%w; see that the setting, the DaemonSet's mount and the host agree, "+
				"and that the host's directory can be written to", err))
		}
	}
	for _, socket := range w.sockets {
		_, err := os.Lstat(socket)
		switch {
		case err == nil:
			w.sound[socket] = true
		case errors.Is(err, fs.ErrNotExist) && w.sound[socket]:
			losses = append(losses, fmt.Errorf("the plugin's socket %s was removed, without which the kubelet takes it for gone",
				socket))
		}
	}
	if err := w.unregistered(); err != nil {
		wrongs = append(wrongs, err)
	}
	found.lost, found.wrong = errors.Join(losses...), errors.Join(wrongs...)
	return found
}

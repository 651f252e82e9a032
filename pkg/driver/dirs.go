package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/hostdir"
	"github.com/gpushare/dra-driver-gpushare/pkg/publish"
)

const (
	// dirInterval is how often the directories are looked at, which costs a few system
	// calls.
	dirInterval = 2 * time.Second
)

// sharedDir is a directory that the plugin shares with another program of the host, and
// the setting that names it.
type sharedDir struct {
	hostdir.Dir
	setting string
	// without says what does not work without it.
	without string
}

func (a *agent) sharedDirs() []sharedDir {
	dir := func(path, setting, without string) sharedDir {
		return sharedDir{Dir: hostdir.Dir{Path: path, HostRoot: a.Cards.HostRoot}, setting: setting, without: without}
	}
	return []sharedDir{
		dir(a.CDIDir, "CDI_DIR", "the container runtime finds no GPUs of any claim"),
		dir(a.PluginDir, "KUBELET_PLUGINS_DIR", "the kubelet cannot ask the plugin to prepare claims"),
		dir(a.RegistrarDir, "KUBELET_REGISTRAR_DIR", "the kubelet does not find the plugin"),
	}
}

// sockets are the plugin's, by which the kubelet knows and asks it.
func (a *agent) sockets() []string {
	// As the helper names them.
	registrar, dra := v1alpha1.DriverName+"-reg.sock", "dra.sock"
	if a.PodUID != "" {
		registrar, dra = kubeletplugin.RollingUpdateRegistrarSocketFile(a.RegistrarDir, v1alpha1.DriverName, a.PodUID), "dra-"+string(a.PodUID)+".sock"
	}
	return []string{filepath.Join(a.RegistrarDir, filepath.Base(registrar)), filepath.Join(a.PluginDir, dra)}
}

// watchDirs ends the process when a directory or socket is lost: a container that is
// started anew has the directories mounted anew, which the container runtime makes if
// need be. What was wrong from the start only is told, since starting anew would not
// help.
func (a *agent) watchDirs(ctx context.Context, publisher *publish.Publisher) {
	w := dirWatch{dirs: a.sharedDirs(), sockets: a.sockets(), sound: map[string]bool{}}
	usable := true
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		lost, wrong := w.look()
		if now := a.unusable() == nil; now != usable {
			usable = now
			publisher.Wake()
		}
		switch {
		case ctx.Err() != nil:
		case lost != nil:
			klog.FromContext(ctx).Error(lost, "What the plugin shares with the host is lost, starting anew")
			a.events.Warn(v1alpha1.ReasonDirectoryLost, "The plugin starts anew: "+lost.Error())
			a.fail(fmt.Errorf("start anew: %w", lost))
		case wrong != nil:
			a.events.Warn(v1alpha1.ReasonDirectoryWrong, wrong.Error())
		default:
			a.events.Clear(v1alpha1.ReasonDirectoryWrong)
		}
	}, dirInterval)
}

// unusable says why no container with any GPU of the node could start, nil if one could:
// a directory that nobody else sees, or device nodes that are not there. What may pass
// by itself is not among it.
func (a *agent) unusable() error {
	for _, d := range a.sharedDirs() {
		if err := d.Check(); hostdir.Gone(err) {
			return fmt.Errorf("%s: %w: %s", d.setting, err, d.without)
		}
	}
	if err := a.preparer.Startable(); err != nil {
		return fmt.Errorf("NVIDIA_DEV_ROOT: no container with any of the GPUs could start: %w", err)
	}
	return nil
}

// dirWatch remembers what was sound.
type dirWatch struct {
	dirs    []sharedDir
	sockets []string
	sound   map[string]bool
}

// look returns what was sound and is lost, and what is wrong otherwise.
func (w *dirWatch) look() (lost, wrong error) {
	var losses, wrongs []error
	for _, d := range w.dirs {
		err := d.Check()
		switch {
		case err == nil:
			w.sound[d.Path] = true
		case w.sound[d.Path] && hostdir.Gone(err):
			losses = append(losses, fmt.Errorf("%s: %w: %s", d.setting, err, d.without))
		default:
			wrongs = append(wrongs, fmt.Errorf("%s: %w: %s; see that the setting, the DaemonSet's mount and the host agree, and that the host's directory can be written to", d.setting, err, d.without))
		}
	}
	for _, socket := range w.sockets {
		_, err := os.Lstat(socket)
		switch {
		case err == nil:
			w.sound[socket] = true
		case errors.Is(err, fs.ErrNotExist) && w.sound[socket]:
			losses = append(losses, fmt.Errorf("the plugin's socket %s was removed, without which the kubelet takes it for gone", socket))
		}
	}
	return errors.Join(losses...), errors.Join(wrongs...)
}

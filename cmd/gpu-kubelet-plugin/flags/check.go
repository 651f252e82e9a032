// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// checkLimitsOffBy refuses what the setting cannot mean: with a typo in it limits would be
// anybody's to switch off.
func checkLimitsOffBy(value string) error {
	_, err := claim.ParseLimitsOffBy(value)
	return err
}

// checkBurst refuses what client-go makes no client with.
func checkBurst(requests int) error {
	if requests < 1 {
		return fmt.Errorf("%d is less than 1", requests)
	}
	return nil
}

// checkContainers refuses what no share could have.
func checkContainers(most int) error {
	if most < 0 {
		return fmt.Errorf("%d is less than 0", most)
	}
	return nil
}

// checkReadInterval refuses what would do nothing but read.
func checkReadInterval(interval time.Duration) error {
	if interval < time.Second {
		return fmt.Errorf("%s is less than a second", interval)
	}
	return nil
}

// checkAuditInterval refuses what would do nothing but read.
func checkAuditInterval(interval time.Duration) error {
	if interval == 0 {
		return nil
	}
	return checkReadInterval(interval)
}

// Values of device-plugin-pods.
const (
	WatchPods = "watch"
	noPods    = "none"
)

func checkPods(value string) error {
	if value != WatchPods && value != noPods {
		return fmt.Errorf("%q is neither %s nor %s", value, WatchPods, noPods)
	}
	return nil
}

func checkTaintEffect(value string) error {
	switch resourceapi.DeviceTaintEffect(value) {
	case resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
		return nil
	}
	return fmt.Errorf("%q is neither %s nor %s", value, resourceapi.DeviceTaintEffectNoSchedule,
		resourceapi.DeviceTaintEffectNoExecute)
}

// checkLabelKey refuses what no label can be called: no node would ever have it.
func checkLabelKey(key string) error {
	if key == "" {
		return nil
	}
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the key of a label: %s", key, strings.Join(problems, "; "))
	}
	return nil
}

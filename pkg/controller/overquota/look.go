// SPDX-License-Identifier: Apache-2.0

package overquota

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
)

// look is one look at the pods of a namespace, in which nothing is asked for twice.
type look struct {
	*reconciler
	namespace string
	// amounts is whether the claims of the namespace are counted by amounts.
	amounts bool
	// templates are nil where there is none.
	templates map[string]*resourceapi.ResourceClaimSpec
	// made are the claims that were made of templates; nil until they are asked for.
	made map[madeFor]bool
}

// madeFor is for which of a pod's claims one was made.
type madeFor struct {
	pod  types.UID
	name string
}

// take takes the room of the claims that a pod waits for, or says which quota leaves less.
// It is false where a template is missing, so that the pod waits for that.
func (l *look) take(ctx context.Context, pod *corev1.Pod, room *quota.Room) (short string, there bool, err error) {
	claims := podstate.UnmadeClaims(pod)
	usage, there, err := l.usage(ctx, claims)
	if err != nil || !there {
		return "", false, err
	}
	short = room.Take(usage)
	if short == "" || len(claims) < 2 {
		return short, true, nil
	}
	// kube-controller-manager makes one claim after the other, and writes their names to the
	// pod's status after the last: those before the one that was refused are there, and used.
	if err := l.find(ctx); err != nil {
		return "", false, err
	}
	left := slices.DeleteFunc(claims, func(c corev1.PodResourceClaim) bool { return l.made[madeFor{pod.UID, c.Name}] })
	if usage, there, err = l.usage(ctx, left); err != nil || !there {
		return "", false, err
	}
	return room.Take(usage), true, nil
}

// find finds out what claims there are. The API server's cache will do: what is a moment old
// there is there for the next look.
func (l *look) find(ctx context.Context) error {
	if l.made != nil {
		return nil
	}
	claims, err := l.Claims.ResourceClaims(l.namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("look which claims of namespace %s there are, for pods that wait for several: %w", l.namespace,
			err)
	}
	l.made = map[madeFor]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		name, ok := claim.Annotations[resourceapi.PodResourceClaimAnnotation]
		if owner := metav1.GetControllerOfNoCopy(claim); ok && owner != nil && claim.DeletionTimestamp == nil {
			l.made[madeFor{owner.UID, name}] = true
		}
	}
	return nil
}

// usage is what a quota charges for claims that are to be made; false where a template is
// missing.
func (l *look) usage(ctx context.Context, claims []corev1.PodResourceClaim) (usage quota.Usage, there bool,
	err error) {
	for _, c := range claims {
		name := *c.ResourceClaimTemplateName
		spec, known := l.templates[name]
		if !known {
			if spec, err = podstate.TemplateSpec(ctx, l.Templates, l.namespace, name); err != nil {
				return quota.Usage{}, false, err
			}
			l.templates[name] = spec
		}
		if spec == nil {
			return quota.Usage{}, false, nil
		}
		requests := spec.Devices.Requests
		if l.amounts {
			requests = quota.Counted(requests)
		}
		usage.Add(requests)
	}
	return usage, true, nil
}

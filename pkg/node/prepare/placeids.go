// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// placeID is the id that an instance had in a place, and when it had to go for that.
type placeID struct {
	gi   int
	gone time.Time
}

// sameID is for how long it is taken that an instance in a place would have the id of the last one there: those of A100
// and H100 always do.
const sameID = 10 * time.Minute

func placeKey(i claim.Instance) string { return fmt.Sprintf("%s %+v", i.ParentUUID, i.PlaceOf()) }

func (p *Preparer) noteID(i claim.Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.placeIDs == nil {
		p.placeIDs = map[string]placeID{}
	}
	p.placeIDs[placeKey(i)] = placeID{i.GI, time.Now()}
}

// checkLastID reports that checkMade would refuse what is to be made, so that it is not made and destroyed each time
// that the kubelet asks.
func (p *Preparer) checkLastID(ctx context.Context, w *preparation, unmade claim.Grant) error {
	p.mu.Lock()
	last, known := p.placeIDs[placeKey(*unmade.GPU.MIG)]
	p.mu.Unlock()
	if !known || time.Since(last.gone) > sameID {
		return nil
	}
	i := *unmade.GPU.MIG
	i.GI, unmade.GPU.MIG = last.gi, &i
	return p.checkMade(ctx, w, unmade)
}

// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// gpuPlace is a place on the GPU with the UUID.
type gpuPlace struct {
	uuid string
	gpu.Place
}

// placeID is the id that an instance had in a place, and when it had to go for that.
type placeID struct {
	gi   int
	gone time.Time
}

// sameID is for how long it is taken that an instance in a place would have the id of the last one there: those of A100
// and H100 always do.
const sameID = 10 * time.Minute

func (p *Preparer) noteID(i claim.Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placeIDs[gpuPlace{i.ParentUUID, i.PlaceOf()}] = placeID{i.GI, time.Now()}
}

// checkLastID reports that checkMade would refuse what is to be made, so that it is not made and destroyed each time
// that the kubelet asks.
func (p *Preparer) checkLastID(ctx context.Context, w *preparation, unmade claim.Grant) error {
	i := *unmade.GPU.MIG
	p.mu.Lock()
	last, known := p.placeIDs[gpuPlace{i.ParentUUID, i.PlaceOf()}]
	p.mu.Unlock()
	if !known || time.Since(last.gone) > sameID {
		return nil
	}
	i.GI, unmade.GPU.MIG = last.gi, &i
	return p.checkMade(ctx, w, unmade)
}

package slices

// Taint keys that the driver puts on its devices; TaintWithdrawn is another one.
const (
	// TaintSwitching keeps new claims off the devices of a node that waits to
	// change its mode.
	TaintSwitching = DriverName + "/mode-switch"
	// TaintNotIsolated keeps new claims off a card on which they could not be
	// held to their shares at the moment.
	TaintNotIsolated = DriverName + "/isolation-unavailable"
	// TaintHeld keeps new claims off a card of which pods that hold no claim leave
	// nothing that could be handed out.
	TaintHeld = DriverName + "/held-without-claim"
)

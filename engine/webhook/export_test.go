package webhook

import "time"

// SetMomentTime changes how long requests wait for the state from now on.
func (w *Webhook) SetMomentTime(d time.Duration) { w.opts.MomentTime = d }

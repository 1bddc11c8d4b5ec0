package rest

// MaxDecoded is how many bytes of stored objects are decoded at a time.
const MaxDecoded = maxDecoded

// HoldDecoded takes as many of these bytes, as lists do that are being made, and
// says whether they were free. What it returns gives them back.
func (h *Handler) HoldDecoded(size int64) (release func(), held bool) {
	return func() { h.decoded.Release(size) }, h.decoded.TryAcquire(size)
}

package embedded

// SealAfter lets tests wait until a log is sealed.
const SealAfter = sealAfter

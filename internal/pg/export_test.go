package pg

// LostListenerAfter is how long it takes at most until notifications are known to arrive no longer.
const LostListenerAfter = pingAfter + pingTimeout

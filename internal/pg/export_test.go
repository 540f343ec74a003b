package pg

// LostListenerAfter is how long it takes at most until notifications are known to arrive no longer.
const LostListenerAfter = pingAfter + pingTimeout

// BehindPooler has a Database take its server for a pooler, but for notifications. It is called before the Database is used.
func (db *Database) BehindPooler() { db.direct = false }

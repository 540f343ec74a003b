// Package match finds, among many filters, those that want an event. It is pure: it knows neither HTTP nor SQL.
//
// A [Filter] is topic patterns and a match; a match is Amazon EventBridge's pattern language. [Parse] compiles one, or says with JSON pointers what
// is wrong. An [Index] of many answers [Index.Match] with the ids of those that want an event. A filter that was accepted cannot fail, and an
// event costs by its contents and its matches, not by the number of filters.
//
// # Topics
//
// A topic is 1–255 of A–Z a–z 0–9 . _ : -, up to 8 words with dots between. In a pattern * is exactly one word, and a last ** is one or more:
// order.** takes order.placed and order.item.added, not order. One of the patterns of a filter has to match. A filter without topics takes all of
// them; an empty list is refused.
//
// # Match
//
// A match has the shape of the event, with an array of alternatives in place of each value that is compared:
//
//	{"status": ["paid", "sent"], "customer": {"country": [{"anything-but": "AT"}]}, "amount": [{"numeric": [">", 0, "<=", 100]}]}
//
// All members have to hold, each by any of its alternatives. The alternatives are values (strings, numbers, true, false, null) and operators:
//
//	{"prefix": "a"}   {"prefix": {"equals-ignore-case": "a"}}   {"suffix": "a"}   {"suffix": {"equals-ignore-case": "a"}}
//	{"equals-ignore-case": "a"}   {"wildcard": "a*b"}   {"exists": true}   {"exists": false}
//	{"numeric": ["=", 1]}   with <, <=, > and >=, too   {"numeric": [">", 0, "<=", 5]}   {"cidr": "10.0.0.0/8"}
//	{"anything-but": "a"}   or a number, or a list of either   {"anything-but": {"prefix": "a"}}   or a list, or suffix, equals-ignore-case, wildcard
//
// and {"$or": [{…}, {…}]} stands among the members of an object for one of several objects of the same kind.
//
//   - Strings compare byte by byte. equals-ignore-case is Unicode's simple case folding: ß is ẞ, but not ss.
//   - Numbers compare by their exact decimal value, all digits counted: 300, 3.0e2 and 300.00 are one; 9007199254740993 is not 9007199254740992.
//     Those of a filter have to be within the range of a 64-bit float.
//   - null is a value and not absence. exists is about values: an object, or an array without values, does not exist for it.
//   - anything-but takes any other value of whatever type, so {"anything-but": "x"} takes 5 and null; absence it does not take.
//   - An array of the event matches by any of its elements, at any depth. Members that are compared within one object of the match have to lie in
//     the same element of each array around them: {"items": {"sku": ["a"], "count": [1]}} wants one item that is both. A member that has to be absent
//     is absent from that element; where no value of the match lies in the array, from all of it.
//   - In a wildcard, * is any number of characters; \* and \\ are the characters themselves.
//   - cidr compares addresses, not their writing; an IPv4 address that IPv6 maps counts as IPv4.
//   - A dot is a character of a name like others.
//   - Of an event with duplicate members, which jsonb never has, each occurrence counts.
//
// The sources are EventBridge's documentation ("Comparison operators for use in event patterns"), and where it is silent the tests of AWS's
// event-ruler (github.com/aws/event-ruler). Where that contradicts itself or the documentation, this package takes the plainer way: a string that is
// an address compares as a string; absence does not depend on the alphabetical order of members; names with dots are not paths; a member that is
// compared both in an $or and beside it is refused, not overwritten; cidr takes single addresses (/32), too.
//
// # Bounds
//
// A filter has at most 64 KiB, 256 topic patterns, 64 levels of objects, 1,000 stars; its $or multiply to at most 1,000 combinations of
// 4,096 conditions in all, which are counted before they are made. Beyond, and for whatever is malformed, unknown, empty or ambiguous, Parse returns an
// [Error] with up to 20 reasons. Nothing backtracks: a wildcard is compared in one pass over a text. An event nested deeper than 10,000 levels
// counts as invalid.
//
// Large arrays do not multiply with filters. Where an event has many values at a place, they are sorted, and each alternative is looked up among
// them. Conditions that have to hold together are evaluated for 64 elements at a time. Wildcards are left: one whose pieces are all in
// the event, but in no text together, is compared with each text that has its beginning and its end. Of an event of 0.87 MB that is meant to be
// slow, 1,000 filters with one condition or two take 0.02 to 0.5 s of processor time, mostly for reading and sorting the event, and 2.5 s if they
// are such wildcards (BenchmarkHostile); before, it was up to 44 s.
//
// # Algorithm
//
// The idea is that of access predicates (Fabret et al., "Filtering algorithms and implementation for very fast publish/subscribe systems", SIGMOD
// 2001: Le Subscribe; the matching tree of Aguilera et al., PODC 1999, is its cousin). Each filter becomes conjunctions, one for each
// combination of its $or. Each conjunction is posted under one of its conditions only, or under its topics: the one that is expected to let it through the
// least often, which is in the first place the one that the fewest other filters have in common. In {"status": ["paid"], "customer": ["c-17"]}
// it is the customer, if 100,000 filters ask for paid. An event is read once, and only where filters look; each value found there leads, through the hash
// tables and trees of its place, to the conjunctions that are posted under it. These are the candidates, and their other conditions are compared:
//
//   - values, and strings regardless of case: hash tables
//   - prefixes: sorted, each with the longest other one that it begins with; suffixes are reversed prefixes
//   - ranges of numbers: an interval tree
//   - address blocks: a hash table, asked for each prefix length there is
//   - wildcards: the rarest of their prefix, their suffix, and their pieces of 3, 5 and 8 bytes (n-grams)
//   - topic patterns: a trie of words
//   - anything-but and exists: all conjunctions that have nothing better, whenever the member is there; if not even that, always
//
// Conditions that several filters share are evaluated once an event, and equal filters, by their [Filter.Canonical] form, are one. Event-ruler and quamina
// (github.com/timbray/quamina) build one automaton of all filters instead. It shares more, but its size depends on how patterns combine, and its
// matching time on how many wildcards are followed at once; here memory is linear in the filters, and each is bounded by itself.
//
// An Index is immutable, and read without locks. [Index.Update] returns another one, which shares the base of the old one and has a second
// layer for changes since: an event is read once, but looked up in both. When more than 1,000 filters, and a 32nd of all, have changed,
// Update builds a new base, 0.2 s of processor time for 100,000 filters. Meanwhile events are matched with the old index.
//
// The scanner of events is this package's own: it finds all members of an event of 320 bytes and matches it in 0.4 µs, where jsontext needs 0.7 µs for
// the names and the skipping alone. Steady matching allocates nothing. Of such events one core matches 2.2 million a second by 10,000
// equalities, and 1.7 million by 100,000 (BenchmarkMatch); a filter takes about 0.8 KiB.
package match

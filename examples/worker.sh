#!/usr/bin/env bash
# A worker for queued: bash, curl and jq.
# QUEUED_URL  where queued serves     QUEUED_KEY  the API key, if it has one     QUEUE, LEASE  the queue, and the lease in seconds
set -euo pipefail
url=${QUEUED_URL:-http://127.0.0.1:8080} queue=${QUEUE:-default} lease=${LEASE:-60} stopping=
trap stopping=1 INT TERM # the current event is finished
answer=$(mktemp) header=$(mktemp)
trap 'rm -f "$answer" "$header"' EXIT
[ -z "${QUEUED_KEY:-}" ] || printf 'Authorization: Bearer %s\n' "$QUEUED_KEY" >"$header" # not an argument: others would see it

# call PATH [FILE] sends its input; the answer is in FILE, its status printed. What may pass is tried again, as claims, acks, nacks and
# extends can be: curl retries broken connections and the statuses 429, 502, 503 and 504, and keeps Retry-After.
call() {
	curl -sS -o "${2:-$answer}" -w '%{http_code}' -m 40 -H @"$header" -H 'Content-Type: application/json' \
		--retry 10 --retry-connrefused --retry-all-errors --retry-max-time 300 --data-binary @- "$url$1" || true
}

# heartbeat ID RECEIPT PID extends the lease at each third of it, and ends the work when the lease is lost.
heartbeat() {
	trap 'kill $! 2>/dev/null; exit' TERM
	while sleep $((lease / 3)) & wait $!; do
		status=$(jq -n --arg r "$2" --arg l "${lease}s" '{receipt: $r, invisible_for: $l}' | call "/events/$1/extend" /dev/null)
		case $status in 2??) ;; 4??) kill "$3" 2>/dev/null; return ;; esac
	done
}

# handle gets the payload as its input; its output, if it is JSON, is the result. Any exit but 0 is a failure.
handle() {
	payload=$(cat)
	sleep "$(jq '.sleep // 0' <<<"$payload")"
	jq -e 'if .fail then error(.fail) else {"worked on": .} end' <<<"$payload"
}

while [ -z "$stopping" ]; do
	status=$(jq -n --arg q "$queue" --arg l "${lease}s" --arg w "bash-$$" '{queue: $q, wait: "5s", invisible_for: $l, worker: $w}' | call /claim)
	case $status in 2??) ;; 4??) cat "$answer" >&2; exit 1 ;; *) sleep 1; continue ;; esac
	id=$(jq -r '.events[0].id // empty' "$answer")
	[ -n "$id" ] || continue
	receipt=$(jq -r '.events[0].receipt' "$answer") # the fence
	output=$(mktemp)
	jq -c '.events[0].event' "$answer" | handle >"$output" 2>&1 &
	work=$!
	heartbeat "$id" "$receipt" "$work" &
	beats=$!
	while kill -0 "$work" 2>/dev/null; do wait "$work" || true; done # a signal ends a wait early
	if wait "$work"; then end=ack; else end=nack; fi
	kill "$beats" 2>/dev/null || true
	if [ "$end" = ack ]; then
		status=$(jq --arg r "$receipt" '{receipt: $r, result: .}' "$output" | call "/events/$id/ack")
	else
		status=$(jq -Rs --arg r "$receipt" '{receipt: $r, error: .[:2048]}' "$output" | call "/events/$id/nack")
	fi
	echo "$id $end $status" # 409: somebody else has the event
	rm -f "$output"
done

#!/usr/bin/env node
// A worker for queued: Node 18 or newer, and nothing else.
// QUEUED_URL  where queued serves     QUEUED_KEY  the API key, if it has one     QUEUE, LEASE  the queue, and the lease in seconds
import { setTimeout as sleep } from 'node:timers/promises'

const { QUEUED_URL = 'http://127.0.0.1:8080', QUEUED_KEY, QUEUE = 'default', LEASE = 60 } = process.env
let isStopping = false
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => { isStopping = true }) // the current event is finished

// Returns the status and the answer as text. What may pass is tried again: acks, nacks, extends and claims can all be repeated.
async function call(path, body) {
  for (let pause = 100; !(isStopping && path === '/claim'); pause = Math.min(5000, pause * 2)) {
    try {
      const headers = { 'Content-Type': 'application/json', ...(QUEUED_KEY && { Authorization: `Bearer ${QUEUED_KEY}` }) }
      const answer = await fetch(QUEUED_URL + path, { method: 'POST', body: JSON.stringify(body), headers, signal: AbortSignal.timeout(30_000) })
      const text = await answer.text()
      if (![429, 502, 503, 504].includes(answer.status)) return { status: answer.status, text }
      await sleep(1000 * (Number(answer.headers.get('Retry-After')) || 0))
    } catch {} // the connection broke
    await sleep(pause * (0.5 + Math.random() / 2))
  }
  return { status: 0, text: '{"events":[]}' }
}

// The work. Long work listens to lost, and stops: somebody else has the event.
async function handle(payload, lost) {
  await sleep((payload.sleep ?? 0) * 1000, undefined, { signal: lost })
  if (payload.fail) throw new Error(payload.fail)
  return { 'worked on': payload }
}

async function work(event) {
  const path = `/events/${event.id}`, receipt = event.receipt // the receipt is the fence
  const lost = new AbortController()
  const heartbeat = setInterval(async () => { // at each third of the lease
    const { status } = await call(path + '/extend', { receipt, invisible_for: `${LEASE}s` })
    if (status >= 400) lost.abort()
  }, LEASE * 1000 / 3)
  const end = await handle(event.event, lost.signal).then(
    (result) => ['/ack', { receipt, result }], (error) => ['/nack', { receipt, error: String(error) }])
  clearInterval(heartbeat)
  const { status } = await call(path + end[0], end[1])
  console.log(event.id, end[0].slice(1), status) // 409: somebody else has the event
}

while (!isStopping) {
  const { status, text } = await call('/claim', { queue: QUEUE, wait: '5s', invisible_for: `${LEASE}s`, worker: `node-${process.pid}` })
  if (status >= 400) throw new Error(`claim: ${text}`)
  for (const event of JSON.parse(text).events) await work(event)
}

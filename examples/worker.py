#!/usr/bin/env python3
"""A worker for queued: only Python's standard library.
QUEUED_URL  where queued serves     QUEUED_KEY  the API key, if it has one     QUEUE, LEASE  the queue, and the lease in seconds
"""
import http.client, json, os, random, signal, sys, threading, time, urllib.error, urllib.request

URL, KEY = os.environ.get("QUEUED_URL", "http://127.0.0.1:8080"), os.environ.get("QUEUED_KEY")
QUEUE, LEASE = os.environ.get("QUEUE", "default"), int(os.environ.get("LEASE", "60"))
stopping = threading.Event()

def call(path, body):
    """Returns the status and the answer. What may pass is tried again: acks, nacks, extends and claims can all be repeated."""
    header = {"Content-Type": "application/json", **({"Authorization": "Bearer " + KEY} if KEY else {})}
    pause = 0.1
    while not (stopping.is_set() and path == "/claim"):
        try:
            request = urllib.request.Request(URL + path, json.dumps(body).encode(), header)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            if e.code not in (429, 502, 503, 504):
                return e.code, json.load(e)
            time.sleep(float(e.headers.get("Retry-After") or 0))
        except (OSError, http.client.HTTPException):
            pass  # the connection broke
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(5, pause * 2)
    return 0, {"events": []}

def heartbeat(event, ended, lost):
    """Extends the lease at each third of it; says so when it is lost."""
    while not ended.wait(LEASE / 3):
        status, _ = call(f"/events/{event['id']}/extend", {"receipt": event["receipt"], "invisible_for": f"{LEASE}s"})
        if status >= 400:
            return lost.set()

def handle(payload, lost):
    """The work. Long work looks at lost now and then, and stops when it is set: somebody else has the event."""
    lost.wait(payload.get("sleep", 0))
    if payload.get("fail"):
        raise ValueError(payload["fail"])
    return {"worked on": payload}

for sig in (signal.SIGINT, signal.SIGTERM):  # the current event is finished
    signal.signal(sig, lambda *_: stopping.set())
while not stopping.is_set():
    status, answer = call("/claim", {"queue": QUEUE, "wait": "5s", "invisible_for": f"{LEASE}s", "worker": f"python-{os.getpid()}"})
    for event in answer["events"] if status < 400 else sys.exit(f"claim: {answer}"):
        ended, lost = threading.Event(), threading.Event()
        threading.Thread(target=heartbeat, args=(event, ended, lost), daemon=True).start()
        body = {"receipt": event["receipt"]}  # the fence
        try:
            end, body["result"] = "ack", handle(event["event"], lost)
        except Exception as e:
            end, body["error"] = "nack", repr(e)
        ended.set()
        status, _ = call(f"/events/{event['id']}/{end}", body)
        print(event["id"], end, status, flush=True)  # 409: somebody else has the event

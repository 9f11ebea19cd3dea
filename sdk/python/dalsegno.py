"""Dal Segno for Python: what an agent imports. One file, the standard library only; README.md shows its loop."""
import base64, functools, http.client, itertools, json, os, queue, random, re, secrets, signal, sys, threading  # noqa
import time, uuid  # noqa
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

OVER = ("FENCED", "ATTEMPT_SPENT", "VERSION_INCOMPATIBLE", "CHECKPOINT_CORRUPT", "FINISHED")  # no more is accepted
GRACE_SECONDS = 10  # from SIGTERM to the end, whatever the loop is doing
TERMINATION_LOG = Path(os.environ.get("DALSEGNO_TERMINATION_LOG", "/dev/termination-log"))

class Refused(Exception):
    """The gateway refused a call for good; `code` is stable, the message is for a person."""
    code = property(lambda self: self.args[0])

class Uncertain(Exception):
    """Nobody knows whether `call` (its id, key, arguments …) took effect: find out, then `Run.settle` it."""
    call = property(lambda self: self.args[0])
    __str__ = __repr__ = lambda self: f"call {self.call['id']!r} may have taken effect: find out, then `Run.settle` it"

class CallFailed(Exception):
    """Raise it in a tool that refused and changed nothing. `Run.call` raises it, now and when it is called again."""
    outcome, result = "failed", property(lambda self: self.args[0] if self.args else None)

class KeyRefused(Exception):
    """Raise it in a tool that refused the key itself (HTTP 422): a person has to look. `Run.call` raises it: exit."""
    outcome, result = "keyRefused", CallFailed.result

class Run:
    """One attempt at a run. Make it with `Run.attach()`, once per process. Its `input` is read when it is asked for."""
    def __init__(self, heartbeat=True, sigterm=True):
        """Takes the run over. Without `heartbeat` a hang is found late; without `sigterm` no handler is installed."""
        self._url, self._instance, own = urlsplit(os.environ["DALSEGNO_URL"]), secrets.token_urlsafe(32), os.getpid()
        self._keys = self._url.path.rstrip("/").split("/")[-1] + ":"  # the run's id: no other run has such keys
        self._term, self._claims, self._kept, self._over = queue.SimpleQueue(), {}, threading.local(), False
        self._lease, self._sooner = 0, threading.Semaphore(0)  # seconds, as of the last answer; when it became shorter
        self.cancelled = self.suspending = False  # what a person asks for, as of the last answer
        if sigterm:  # a fork has no such thread, and ends at once; one SIGTERM may interrupt the handler of another
            leave = lambda: (self._term.put(self._term.get()), time.sleep(GRACE_SECONDS), os._exit(143))
            threading.Thread(target=leave, daemon=True).start()
            signal.signal(signal.SIGTERM, lambda *_: self._term.put(0) if os.getpid() == own else os._exit(143))
        answer = self._send("attach", {"instance": self._instance})
        self.name, self.attempt, self.decision = answer["run"], answer["attempt"], answer["decision"]
        self.warnings, self.head = answer["warnings"], answer.get("head")
        self.unsettled_calls, self.completed_calls = answer["unsettledCalls"], answer["completedCalls"]
        self.planned = bool(self.head) and self.head["boundary"] == "plan"  # whether `turn` has its plan already
        self.turn = self.head["turn"] + (not self.planned) if self.head else 1  # the next one to commit
        whole = answer if "state" in answer or not self.head else self._send("state", method="GET")  # it was too large
        self.channels = {name: _decode(channel) for name, channel in whole.get("state", {}).items()}  # values and lists
        self.state = self.channels.get("state")  # what the last `commit(state=…)` held; None on a fresh run
        if heartbeat:
            threading.Thread(target=self._beat, args=[answer["heartbeatSeconds"]], daemon=True).start()

    attach = classmethod(lambda cls, heartbeat=True, sigterm=True: cls(heartbeat, sigterm))
    input = functools.cached_property(lambda self: json.loads(  # no JSON? Read DALSEGNO_INPUT_FILE yourself
        Path(os.environ["DALSEGNO_INPUT_FILE"]).read_bytes().strip() or "null"))

    def commit(self, turn, state=None, channels=None, events=(), usage=None, plan=False, calls=(), finish=None,
               records=()):
        """Commits a boundary of `turn`, its result or its `plan`, and returns once it is durable.
        `state` is the whole state; `channels` only what changed: {"set": {name: value}, "append": {name: [items]},
        "truncate": {name: length}, "remove": [names]}; with neither it stays. `usage` of this boundary: {"tokensIn",
        "tokensOut", "toolCalls", "costMicroUSD"}. `calls` of a plan: [{"id", "policy", "arguments"}]. `records`: as of
        `write_records`. `finish` ends the run: {"outcome": "succeeded" | "failed", "reason", "message", "output"}."""
        channels = channels and {**channels, "set": {k: {"json": v} for k, v in channels.get("set", {}).items()},
            "append": {k: [{"json": v} for v in of] for k, of in channels.get("append", {}).items()}}
        answer = self._send(f"turns/{turn}/plan" if plan else f"turns/{turn}", {"commitId": str(uuid.uuid4()),
            "state": state, "channels": channels, "events": list(events), "usage": usage, "records": _writes(records),
            "calls": [{"key": self._keys + of["id"], **of} for of in calls], "outcome": finish and {"finish": finish}})
        self.head, self.planned, self.turn, self._over = answer["head"], plan, turn if plan else turn + 1, bool(finish)
        return answer

    def call(self, id, *, policy, tool, key=None, arguments=None):
        """Runs `tool(key, arguments)` unless it is known to be done; returns its result, now or from the store.
        `policy` says what to do where the outcome is unknown: retrySameKey, probe, ask or readOnly. The key, unless
        given, is made of the run and `id`. An exception leaves the outcome unknown; `CallFailed`: it did nothing."""
        path, fresh = f"calls/{quote(id, '')}", json.loads(json.dumps({"claimId": str(uuid.uuid4()), "policy": policy,
            "key": key or self._keys + id, "arguments": arguments}))  # a copy of what can be sent
        kept = claim, goes = self._claims.setdefault(id, (fresh, itertools.count()))  # one a call, until it is over
        try:
            answer = self._send(f"{path}/claim", claim)
        except Refused as refused:  # the gateway's own word on these bytes; after any other they may have been heard
            if refused.code in ("INVALID", "TOO_LARGE") and self._claims.get(id) is kept:  # no other thread's by now
                self._claims.pop(id, None)
            raise
        call, state, result = answer["call"], answer["call"]["state"], answer["call"].get("result")
        again = answer["verdict"] == "go" and next(goes) > 0  # its tool may have run
        if state == "started" and (answer["verdict"] == "uncertain" or again and claim["policy"] in ("probe", "ask")):
            raise Uncertain(call)
        if answer["verdict"] == "go":
            try:
                state, result = "completed", tool(call["key"], call.get("arguments"))
            except (CallFailed, KeyRefused) as failed:
                state, result = failed.outcome, failed.result
            self._send(f"{path}/complete", {"claimId": claim["claimId"], "outcome": state, "result": result})
        self._claims.pop(id, None)
        if state != "completed":
            raise (CallFailed if state == "failed" else KeyRefused)(result)
        return result

    def complete(self, id, outcome, result=None):
        """Records how a tool ended where `call` could not, as when its result was too large or no JSON."""
        claim = self._claims[id][0]["claimId"]
        self._send(f"calls/{quote(id, '')}/complete", {"claimId": claim, "outcome": outcome, "result": result})

    def settle(self, id, outcome, reason, result=None):
        """Records what a probe found out about an uncertain call: "completed" or "failed", and how it was found."""
        self._send(f"calls/{quote(id, '')}/settle", {"outcome": outcome, "reason": reason, "result": result})

    def write_records(self, operations):
        """Changes records, all or none: [{"put" | "putIfAbsent": {"space", "key", "value"}}, {"delete": …}, …]."""
        self._send("records", {"batchId": str(uuid.uuid4()), "operations": _writes(operations)})

    def records(self, space, prefix=""):
        """Yields the entries under keys that begin with `prefix`, in order: {"key", "entryId", "value", "turn"}."""
        query, page = f"records?space={quote(space)}&prefix={quote(prefix)}", {"next": ""}
        while "next" in page:
            page = self._send(query + ("&after=" + quote(page["next"]) if page["next"] else ""), method="GET")
            yield from ({**record, "value": _decode(record)} for record in page["records"])

    def finish(self, outcome, **more):
        """Ends the run where there is no new state: "succeeded" or "failed"; `more`: reason, message, output."""
        self._send("finish", {"commitId": str(uuid.uuid4()), "finish": {"outcome": outcome, **more}})
        self._over = True

    stopping = property(lambda self: not self._term.empty(), doc="SIGTERM came: commit and leave within GRACE_SECONDS.")
    def check(self):
        """Between two steps: acknowledges a cancel and exits 0, or exits 143 where the pod has to go."""
        if self.cancelled:
            self._over = True
            self._send("cancelled")
        if self.cancelled or self.stopping:
            sys.exit(0 if self.cancelled else 143)

    def fail(self, message, fatal=False):
        """Exits 1 and leaves word why. `fatal`: more attempts would not help, hold the run for a person."""
        word = {"dalsegno": 1, "class": "fatal" if fatal else "crash", "message": message[:512]}
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_bytes(json.dumps(word, ensure_ascii=False).encode("utf-8", "replace"))
        sys.exit(f"dalsegno: {word['class']}: {message}")

    def _send(self, path, fields=None, method="POST", timeout=30):
        """Serialises once and sends the same bytes until they are answered; no try or wait is longer than `timeout`."""
        call = re.sub("(?<=^calls/)[^/]+", "*", path.split("?")[0])  # what may stand in a log: no id, no record's key
        body = fields and json.dumps({k: v for k, v in fields.items() if v is not None}).encode()
        if body and len(body) > 16 << 20:  # the gateway says so too, but hangs up on a long one
            raise Refused("TOO_LARGE", f"{call}: a body of {len(body)} bytes: keep large things elsewhere")
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = vars(self._kept).setdefault(os.getpid(), kind(self._url.netloc, timeout=timeout))  # a thread's own
        for delay in itertools.chain((0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), itertools.repeat(5)):  # seconds
            token = self._instance if path != "attach" else Path(os.environ["DALSEGNO_TOKEN_FILE"]).read_text("ascii")
            headers = {"Authorization": f"Bearer {token.strip()}", "Content-Type": "application/json"}
            try:
                connection.request(method, f"{self._url.path.rstrip('/')}/{path}", body, headers)
                answer = connection.getresponse()
                status, later, text = answer.status, answer.headers.get("Retry-After", ""), answer.read()
                if status == 200 and isinstance(answer := json.loads(text), dict):
                    self.suspending = answer.get("suspend", self.suspending)
                    self.cancelled = self.cancelled or answer.get("cancel", False)
                    lease, self._lease = self._lease, answer.get("leaseSeconds", self._lease)
                    if self._lease < lease:
                        self._sooner.release()
                    return answer
                if status not in (200, 429) and status < 500:
                    self._refuse(call, status, text)
            except http.client.InvalidURL:  # it was never sent, and never will be
                raise
            except (OSError, http.client.HTTPException, json.JSONDecodeError, UnicodeDecodeError) as error:
                status, later = error, ""  # it may have been heard; the gateway tells a repeat by its bytes
            connection.close()  # the next one may lead to another gateway
            if delay == 5:
                self._say(f"{call}: no answer yet ({status}), sending it again")
            time.sleep(max(random.uniform(delay / 2, delay), min(timeout, int(later[:9])) if later.isdecimal() else 0))

    def _refuse(self, call, status, answer):
        code, detail = f"HTTP_{status}", str(answer[:512])
        with suppress(ValueError, LookupError, TypeError):  # where it is not the gateway's words
            code, detail = (json.loads(answer)[name] for name in ("code", "detail"))
        if code in OVER and not (call == "heartbeat" and (code == "FINISHED" or self._over)):  # it was not we
            self._say(f"{code}: {detail}")
            os._exit(0 if code == "FINISHED" else 1)
        if code in OVER or call != "heartbeat":  # any other refusal is no answer to that: it goes on
            raise Refused(code, f"{call}: {detail}")

    def _beat(self, seconds):  # the first one goes at once: it binds the lease
        while not self._over:
            with suppress(Refused):  # it was we who ended the run
                self._send("heartbeat", timeout=5)
            self._sooner.acquire(timeout=min(seconds, self._lease / 3 or seconds))

    def _say(self, text):
        with suppress(OSError):  # that nobody hears it changes nothing
            os.write(2, f"dalsegno: {text}\n".encode("utf-8", "replace"))

def _decode(channel):
    values = [json.loads(base64.b64decode(of["base64"])) if kind == "bytes" and of["mediaType"] == "application/json5"
              else of for payload in channel.get("list", [channel.get("value")]) for kind, of in payload.items()]
    return values if "list" in channel else values[0]
def _writes(ops):
    return [{k: {**of, "value": {"json": of["value"]}} if "value" in of else of} for op in ops for k, of in op.items()]

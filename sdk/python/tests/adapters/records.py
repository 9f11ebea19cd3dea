"""Records of a run over HTTP, as the adapters beside this file need them: for tests only."""

import json, secrets, urllib.error, urllib.parse, urllib.request, uuid  # noqa: E401


class Refused(Exception):
    """The gateway refused a call; `code` is stable."""
    code = property(lambda self: self.args[0])


class Records:
    """The records of one run, by the worker of one attempt."""

    def __init__(self, url, token):
        self.url, self.bearer = url, token
        instance = secrets.token_urlsafe(32)
        self._send("attach", {"instance": instance})
        self.bearer = instance

    def write(self, operations):
        """Applies all of these operations, or none; a thousand in a batch."""
        for at in range(0, len(operations), 1_000):
            batch = operations[at:at + 1_000]
            self._send("records", {"batchId": str(uuid.uuid4()), "operations": batch})

    def read(self, space, prefix=""):
        """Every entry under keys with this prefix: (key, value), in order."""
        query, after = {"space": space, "prefix": prefix}, {}
        while after is not None:
            page = self._send("records?" + urllib.parse.urlencode({**query, **after}, quote_via=urllib.parse.quote))
            yield from ((record["key"], record["value"]["json"]) for record in page["records"])
            after = {"after": page["next"]} if "next" in page else None

    def _send(self, path, fields=None):
        body = fields and json.dumps(fields).encode()
        request = urllib.request.Request(f"{self.url}/{path}", body, {"Authorization": f"Bearer {self.bearer}"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            raise Refused(problem["code"], problem["detail"]) from None


def put(space, key, value):
    return {"put": {"space": space, "key": key, "value": {"json": value}}}


def put_if_absent(space, key, value):
    return {"putIfAbsent": {"space": space, "key": key, "value": {"json": value}}}


def append(space, key, entry_id, value):
    return {"append": {"space": space, "key": key, "entryId": entry_id, "value": {"json": value}}}


def delete(space, key):
    return {"delete": {"space": space, "key": key}}


def path(*parts):
    """A key of these parts, none of which can be taken for another: each is followed by a slash, and has none."""
    return "".join(urllib.parse.quote(str(part), safe="") + "/" for part in parts)


def parts(key):
    """The parts of a key."""
    return [urllib.parse.unquote(part) for part in key.split("/")[:-1]]

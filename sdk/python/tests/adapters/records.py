"""What both adapters beside this file need of the records of a `dalsegno.Run`, and how they make keys: for tests only."""

import urllib.parse


def write(run, operations):
    """Applies a list of operations; a thousand at a time are all done or none."""
    for at in range(0, len(operations), 1_000):
        run.write_records(operations[at:at + 1_000])


def read(run, space, prefix=""):
    """Every entry under keys with this prefix: (key, value), in order."""
    return ((record["key"], record["value"]) for record in run.records(space, prefix))


def put(space, key, value):
    return {"put": {"space": space, "key": key, "value": value}}


def put_if_absent(space, key, value):
    return {"putIfAbsent": {"space": space, "key": key, "value": value}}


def append(space, key, entry_id, value):
    return {"append": {"space": space, "key": key, "entryId": entry_id, "value": value}}


def delete(space, key):
    return {"delete": {"space": space, "key": key}}


def path(*parts):
    """A key of these parts, none of which can be taken for another: each is followed by a slash, and has none."""
    return "".join(urllib.parse.quote(str(part), safe="") + "/" for part in parts)


def parts(key):
    """The parts of a key."""
    return [urllib.parse.unquote(part) for part in key.split("/")[:-1]]

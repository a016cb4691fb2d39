"""Good requests to the gateway, how an input has some of them, and how they are changed.

A step of an input is a request: its line, its headers, an empty line and its body. `{etag}`, `{href}`,
`{lease}` and `{location}` in it are what an answer had last, and `{csrf}` is the secret of the console. A
step that begins with `!` is sent as it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

import msgspec
from fuzz_frames import Change, changed_value, vary_steps

EVENT = '{"specversion":"1.0","id":"1","source":"/x","type":"t","data":{"a":1}}'
FORM = "application/x-www-form-urlencoded"
XML = "application/restms+xml"
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}

Asked = tuple[str, str, Mapping[str, str], str]

REQUESTS: Sequence[Asked] = (
    (
        "POST",
        "/v1/admin/queue.redrive",
        {"Content-Type": "application/json"},
        '{"kind":"mailbox","name":"ann","sequences":[1],"body":"YQ==","dry_run":true}',
    ),
    ("GET", "/v1/admin/explain?stream=loud&subject=a&headers=%7B%22n%22%3A1%7D&limit=2", {}, ""),
    ("POST", "/v1/streams/loud/messages?subject=a.b&ttl=5", {"Content-Type": "application/json"}, '{"a": 1}'),
    ("POST", "/v1/streams/loud/messages", {"Content-Type": "application/cloudevents+json"}, EVENT),
    (
        "POST",
        "/v1/streams/loud/messages",
        {"Content-Type": "application/cloudevents-batch+json", "Idempotency-Key": "k"},
        f"[{EVENT},{EVENT}]",
    ),
    (
        "POST",
        "/v1/streams/loud/messages",
        {"Content-Type": "application/x-ndjson"},
        '{"subject":"a","headers":{"n":1},"body":"b"}\n{"body_base64":"YQ=="}\n',
    ),
    (
        "POST",
        "/v1/streams/loud/messages",
        {
            "ce-specversion": "1.0",
            "ce-id": "1",
            "ce-source": "/x",
            "ce-type": "%C3%A4",
            "Malamute-Header-n": "1",
        },
        "x",
    ),
    (
        "GET",
        "/v1/streams/loud/messages?start=first&limit=2&pattern=a.*&where=n%20%3D%201",
        {"Accept": "application/x-ndjson"},
        "",
    ),
    (
        "GET",
        "/v1/streams/loud/messages?family=regex&pattern=^a&criteria=[[%22all%22,%22%22]]&start=seq:1",
        {},
        "",
    ),
    ("GET", "/v1/streams/loud/events?start=first", {"Accept": "text/event-stream", "Last-Event-ID": "1"}, ""),
    (
        "POST",
        "/v1/mailboxes/loud/messages?priority=3&delay=0&correlation=1",
        {"Content-Type": "text/plain"},
        "hello",
    ),
    ("POST", "/v1/mailboxes/loud/leases?limit=2&wait=0.02&shared=true", {}, ""),
    ("POST", "/v1/mailboxes/loud/leases/{lease}/retry?delay=0", {}, ""),
    ("POST", "/v1/services/loud/requests?key=k", {"Prefer": "wait=0"}, "ask"),
    ("GET", "{location}?wait=0", {}, ""),
    ("POST", "/v1/services/loud/leases?pattern=%23", {}, ""),
    ("POST", "/v1/services/loud/leases/{lease}/reply?final=true", {"Content-Type": "text/plain"}, "answer"),
    (
        "GET",
        "/.well-known/mercure?topic=a&topic=/b/{id}&lastEventID=earliest",
        {"Accept": "text/event-stream"},
        "",
    ),
    ("POST", "/.well-known/mercure", {"Content-Type": FORM}, "topic=a&topic=b&data=x&id=i&type=t&retry=5"),
    ("GET", "/restms/domain/default", {"Accept": "application/restms+json"}, ""),
    (
        "POST",
        "/restms/domain/default",
        {"Content-Type": "application/restms+json", "Accept": "application/restms+json"},
        '{"restms":{"feed":[{"name":"f","type":"topic"}]}}',
    ),
    (
        "POST",
        "/restms/domain/default",
        {"Content-Type": XML},
        '<restms><pipe type="ondemand" title="t" /></restms>',
    ),
    (
        "POST",
        "{location}",
        {"Content-Type": XML},
        '<restms><join address="a.*" feed="/restms/feed/f"><header name="n" value="1" /></join></restms>',
    ),
    (
        "POST",
        "/restms/feed/f",
        {"Content-Type": XML},
        '<restms><message address="a.b" reply_to="r"><content>x</content></message></restms>',
    ),
    ("GET", "{location}", {"Accept": XML, "If-None-Match": "{etag}"}, ""),
    (
        "PUT",
        "/restms/feed/f",
        {"Content-Type": XML, "If-Match": "{etag}"},
        '<restms><feed title="n" /></restms>',
    ),
    ("DELETE", "{href}", {}, ""),
    ("GET", "/metrics?stream=loud", {}, ""),
    ("GET", "/ready", {}, ""),
    ("GET", "/v1/problems/404", {}, ""),
    ("GET", "/v1/openapi.json", {}, ""),
    ("GET", "/", {}, ""),
    ("GET", "/console/streams", {}, ""),
    ("GET", "/console/stream?name=loud", {}, ""),
    ("GET", "/console/stream/history?name=loud&start=first", {}, ""),
    ("GET", "/console/queue?kind=mailbox&name=loud", {}, ""),
    ("GET", "/console/explain?kind=stream&name=loud&subject=a&headers=n%3D1", {}, ""),
    ("GET", "/console/users", {}, ""),
    (
        "POST",
        "/console/change",
        {"Content-Type": FORM, "Origin": "http://localhost"},
        "csrf={csrf}&topic=stream.create&stream=other&bytes=1MiB&back=/",
    ),
    (
        "POST",
        "/console/stream/publish",
        {"Content-Type": FORM, "Origin": "http://localhost"},
        "csrf={csrf}&name=loud&subject=a&headers=n%3D1&body=x",
    ),
    ("GET", "/v1/ws", {**UPGRADE, "Sec-WebSocket-Protocol": "malamute.json"}, ""),
)
"""Most of them need nothing that was before."""

WORDS: Sequence[bytes] = (
    *(
        b"",
        b"0",
        b"1",
        b"-1",
        b"9223372036854775807",
        b"1e400",
        b"nan",
        b"true",
        b"null",
        b"*",
        b"%00",
        b"%2F",
    ),
    *(
        b"%FF",
        b"%C3%A4",
        b"..",
        b"$audit",
        b"$events",
        b"loud",
        b"f",
        b"default",
        b"x" * 300,
        b"first",
        b"last",
    ),
    *(
        b"new",
        b"seq:1",
        b"time:0",
        b"since:1h",
        b"regex",
        b"exact",
        b"geo",
        b"fields",
        b"wait=0",
        b"respond-async",
    ),
    *(
        b"application/json",
        b"application/x-ndjson",
        b"application/cloudevents+json",
        b"application/restms+json",
    ),
    *(
        b"text/xml",
        b"text/plain; charset=x",
        b"text/event-stream",
        b"{location}",
        b"{lease}",
        b"{etag}",
        b"{href}",
    ),
    *(b"{csrf}", b'"1"', b"W/", b"Basic YTpi", b"Bearer a.b.c", b"http://localhost", b"gzip", b"identity"),
    *(
        b"Thu, 01 Jan 1970 00:00:00 GMT",
        b"topic",
        b"fanout",
        b"headers",
        b"rotator",
        b"service",
        b"ring",
        b"memory",
    ),
    *(
        b"acknowledge",
        b"retry",
        b"reject",
        b"release",
        b"progress",
        b"bounce",
        b"mailbox",
        b"stream/loud",
        b"100-continue",
    ),
    *(b"title", b"password", b"private", b"disk", b"regexp", b"prefix", b"end", b"#{a}", b"{?a*}", b"a.#"),
)
METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH")
NAMES: Sequence[bytes] = (
    *(
        b"Accept",
        b"Authorization",
        b"Content-Encoding",
        b"Content-Length",
        b"Content-Type",
        b"Cookie",
        b"Expect",
    ),
    *(
        b"Forwarded",
        b"Host",
        b"Idempotency-Key",
        b"If-Match",
        b"If-Modified-Since",
        b"If-None-Match",
        b"Origin",
    ),
    *(
        b"If-Unmodified-Since",
        b"Last-Event-ID",
        b"Malamute-Header-x",
        b"Prefer",
        b"RestMS-Password",
        b"traceparent",
    ),
    *(
        b"Transfer-Encoding",
        b"When-None-Match",
        b"When-Modified-After",
        b"Connection",
        b"ce-id",
        b"ce-specversion",
    ),
)
_PARTS = re.compile(rb"([/?&=;, :<>\"{}\[\]\n])")


def written(asked: Asked) -> bytes:
    """A request as a step of an input has it."""
    method, target, headers, body = asked
    lines = [f"{method} {target}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\n".join([*lines, "", body]).encode()


def mutate(data: bytes, size_max: int, seed: int, change: Change) -> bytes:
    """Requests with one or a few of them changed, moved, doubled, added or left out."""
    return vary_steps(
        data,
        size_max,
        seed,
        change,
        lambda steps, place, rng: _changed(steps[place], rng, change),
        lambda rng: written(rng.choice(REQUESTS)),
    )


def mutate_body(data: bytes, size_max: int, seed: int, change: Change) -> bytes:
    """A body behind the byte that says what it is, with a line of it changed as a value."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return change(data, size_max)
    lines = data[1:].split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = changed_json(lines[place], rng)
    return (data[:1] + b"\n".join(lines))[:size_max]


def _changed(step: bytes, rng: random.Random, change: Change) -> bytes:
    head, blank, body = step.partition(b"\n\n")
    line, *headers = head.split(b"\n")
    match rng.randrange(9):
        case 0:
            line = rng.choice(METHODS) + b" " + line.partition(b" ")[2]
        case 1 | 2 | 3:
            line = _changed_words(line, rng)
        case 4:
            headers.append(rng.choice(NAMES) + b": " + rng.choice(WORDS))
        case 5 if headers:
            place = rng.randrange(len(headers))
            headers[place] = _changed_words(headers[place], rng)
        case 6 if headers:
            del headers[rng.randrange(len(headers))]
        case 7:
            body = change(body, len(body) + 16) if body else rng.choice(WORDS)
        case _:
            body = changed_json(body, rng)
    return b"\n".join([line, *headers]) + (blank or b"\n\n") + body


def _changed_words(text: bytes, rng: random.Random) -> bytes:
    """A text with a word of it changed, doubled or left out; what parts them counts as a word."""
    words = _PARTS.split(text)
    place = rng.randrange(len(words))
    match rng.randrange(6):
        case 0:
            del words[place]
        case 1:
            words[place:place] = words[place : place + rng.randint(1, 4)]
        case _:
            words[place] = rng.choice(WORDS)
    return b"".join(words)


def changed_json(body: bytes, rng: random.Random) -> bytes:
    """A text in JSON with a value in it changed; in any other a word."""
    try:
        return msgspec.json.encode(changed_value(msgspec.json.decode(body), rng))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return _changed_words(body, rng)

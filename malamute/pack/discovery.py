"""Brokers on the local network, by DNS-SD (RFC 6763): they are announced, and shown.

Anybody can announce anything. So the announcements are checked like any other input and shown, and nothing
connects by itself: an operator sets a link, with a context that has the key of that broker.

Source: the service type and the TXT record follow RFC 6763, sections 6 and 7.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from malamute.errors import InvalidValue, NotInstalled
from malamute.protocol.fields import Name, Urls, rule_of

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

SERVICE = "_malamute._tcp.local."

FOUND_MAX = 256
"""Announcements that are looked at. Of a flood of them the rest is left out."""

ANSWER_SECONDS = 2.0
"""Time for the answer of one host about its announcement."""

_BROKER = re.compile(r"[0-9a-f]{32}")


class FoundBroker(NamedTuple):
    """An announced broker: nobody has proved that it is that one."""

    name: str
    broker: str
    urls: Sequence[str]


class Discovered(NamedTuple):
    """The brokers by name, and the number of announcements that are none."""

    brokers: Sequence[FoundBroker]
    left_out: int


def found_broker(properties: dict[bytes, bytes | None]) -> FoundBroker | None:
    """Return the broker of a TXT record; None if a broker could not have written it."""
    try:
        texts = {key: (properties.get(key) or b"").decode() for key in (b"name", b"id", b"urls")}
    except UnicodeDecodeError:
        return None
    name, broker, urls = texts[b"name"], texts[b"id"], texts[b"urls"].split(",")
    good = rule_of(Name).holds(name) and rule_of(Urls).holds(urls) and _BROKER.fullmatch(broker)
    return FoundBroker(name, broker, urls) if good else None


def record_of(name: str, broker: str, urls: Sequence[str]) -> dict[bytes, bytes]:
    """Return the announcement of a broker by its keys. Raises `InvalidValue` if it would be left out."""
    record = {b"name": name.encode(), b"id": broker.encode(), b"urls": ",".join(urls).encode()}
    # A text of a TXT record has at most 255 bytes, with its key.
    if found_broker({**record}) is None or len(record[b"urls"]) > 250:
        raise InvalidValue(
            f"{name!r} at {', '.join(urls)}: expected a name, and URLs such as tcp://HOST:9999"
        )
    return record


def one_of_each(found: Sequence[FoundBroker | None]) -> Discovered:
    """Return each of the brokers once, and the number of announcements that are none."""
    brokers = {broker._replace(urls=tuple(broker.urls)) for broker in found if broker is not None}
    return Discovered(sorted(brokers), found.count(None))


@asynccontextmanager
async def announced(
    name: str, broker: str, urls: Sequence[str], interfaces: Sequence[str]
) -> AsyncIterator[None]:
    """Announce a broker during the block, and say goodbye at its end. `interfaces` are addresses, or all.

    Raises:
        InvalidValue: a broker cannot have this name, or these URLs.
    """
    properties = record_of(name, broker, urls)
    zeroconf = _library()
    port = int(re.sub(r"\D", "", urls[0].rpartition(":")[2]) or 0) % 65536
    async with _opened(interfaces) as net:
        info = zeroconf.AsyncServiceInfo(
            SERVICE,
            f"{broker}.{SERVICE}",
            port=port,
            properties=properties,
            server=f"{broker}.local.",
            parsed_addresses=_addresses_of(urls) or [*interfaces],
        )
        await (await net.async_register_service(info))
        yield


def _addresses_of(urls: Sequence[str]) -> list[str]:
    """Return the addresses among the hosts of URLs: a record has some, or nobody resolves it."""
    found = []
    for url in urls:
        with suppress(ValueError):
            found.append(str(ip_address(urlsplit(url).hostname or "")))
    return found


async def discover(seconds: float, interfaces: Sequence[str]) -> Discovered:
    """Return the brokers that are announced, after so many seconds."""
    zeroconf = _library()
    names: dict[str, None] = {}

    def note(name: str, state_change: Any, **more: Any) -> None:
        if state_change.name == "Removed":
            names.pop(name, None)
        elif len(names) < FOUND_MAX:
            names[name] = None

    async with _opened(interfaces) as net:
        browser = zeroconf.AsyncServiceBrowser(net.zeroconf, SERVICE, handlers=[note])
        try:
            await asyncio.sleep(seconds)
            infos = [zeroconf.AsyncServiceInfo(SERVICE, name) for name in names]
            await asyncio.gather(*(info.async_request(net.zeroconf, ANSWER_SECONDS * 1000) for info in infos))
        finally:
            await browser.async_cancel()
    return one_of_each([found_broker(info.properties) for info in infos])


@asynccontextmanager
async def _opened(interfaces: Sequence[str]) -> AsyncIterator[AsyncZeroconf]:
    zeroconf = _library()
    net = zeroconf.AsyncZeroconf(**({"interfaces": list(interfaces)} if interfaces else {}))
    try:
        yield net
    finally:
        await net.async_close()


def _library() -> Any:
    """Return the library. Raises `NotInstalled`."""
    try:
        import zeroconf.asyncio
    except ImportError:
        raise NotInstalled("zeroconf is missing: pip install 'malamute[discovery]'") from None
    return zeroconf.asyncio

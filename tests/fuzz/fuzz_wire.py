"""Front doors of the wire: frames, records, payloads, and texts that name something."""

from contextlib import suppress

from fuzz_frames import frames_of
from wire_checks import check_decode, check_payload, check_record, check_uri

from malamute.errors import InvalidName, InvalidValue
from malamute.protocol.names import Place, endpoint_of
from malamute.protocol.start import Start


def codec(data: bytes) -> None:
    """A command is one of the messages, or one of three faults, and comes back from its own bytes."""
    check_decode(frames_of(data))


def record(data: bytes) -> None:
    """A record has headers and frames, or is malformed."""
    check_record(data)


def payload(data: bytes) -> None:
    """A payload has as many rows as it says, or is malformed."""
    first, *large = frames_of(data)
    check_payload(first, large)


def names(data: bytes) -> None:
    """A text is a URI, a place, a start; or it is refused with its own error."""
    text = data.decode("utf-8", "surrogateescape")
    check_uri(text)
    with suppress(InvalidName):
        endpoint_of(text)
    with suppress(InvalidName):
        place = Place.parse(text)
        assert Place.parse(str(place)) == place
    with suppress(InvalidValue):
        Start.parse(text)

import pytest

from malamute.errors import InvalidName
from malamute.protocol.names import DEFAULT_PORT, Uri, endpoint_of, is_name


@pytest.mark.parametrize("name", ["x", "$x", "a/b c", "x" * 255, "é" * 127, "€" * 85, "😀" * 63])
def test_a_name_has_1_to_255_bytes(name: str) -> None:
    assert is_name(name)
    assert not is_name(name + "é" * 127 + "x" * 2)
    assert not is_name("")


@pytest.mark.parametrize(
    "name", ["x" * 256, "é" * 128, "€" * 85 + "x", "😀" * 64, "\x00", "a\n", "\x7f", "\x80", "\ud800"]
)
def test_a_longer_name_and_one_with_a_control_character_is_none(name: str) -> None:
    assert not is_name(name)


def test_a_uri_has_a_default_port_and_takes_any_name() -> None:
    assert Uri.parse("malamute://host/stream/weather") == Uri("host", DEFAULT_PORT, "stream", "weather")
    assert Uri.parse("MALAMUTE://Host:80/mailbox/a%2Fb") == Uri("host", 80, "mailbox", "a/b")
    assert Uri.parse("malamute://[::1]:80/service/é") == Uri("::1", 80, "service", "é")
    assert str(Uri("::1", 80, "service", "é")) == "malamute://[::1]:80/service/%C3%A9"
    assert str(Uri("host", DEFAULT_PORT, "mailbox", "a/b")) == "malamute://host/mailbox/a%2Fb"


@pytest.mark.parametrize(
    "uri",
    [
        "malamute://host/stream/a?b",
        "malamute://host/stream/a#b",
        "malamute://user@host/stream/a",
        "malamute://host:0/stream/a",
        "malamute://host:65536/stream/a",
        "malamute://host:x/stream/a",
        "malamute://host/topic/a",
        "malamute://host/Stream/a",
        "malamute://host/stream/",
        "malamute://host/stream/a/b",
        "malamute://host/stream/a%0a",
        "malamute://host/stream/a\tb",
        "malamute://host/stream/a\n",
        " malamute://host/stream/a",
        "malamute://host/stream/%ff",
        "malamute://host/stream/%4",
        "malamute:///stream/a",
        "mlm://host/stream/a",
        "malamute://[::1/stream/a",
        "malamute://[%1]/stream/a",
    ],
)
def test_what_is_no_uri_is_an_invalid_name(uri: str) -> None:
    with pytest.raises(InvalidName):
        Uri.parse(uri)
    with pytest.raises(InvalidName):
        endpoint_of(uri)


@pytest.mark.parametrize(
    ("uri", "endpoint"),
    [
        ("malamute://host", "tcp://host:9999"),
        ("malamute://Host/", "tcp://host:9999"),
        ("malamute://host:80", "tcp://host:80"),
        ("malamute://[::1]:80/", "tcp://[::1]:80"),
        ("malamute://host:80/service/a%2Fb", "tcp://host:80"),
    ],
)
def test_a_uri_leads_to_a_broker_with_or_without_a_name_there(uri: str, endpoint: str) -> None:
    assert endpoint_of(uri) == endpoint


@pytest.mark.parametrize(
    "uri", ["malamute://", "malamute:///", "malamute://host:0", "malamute://host//", "malamute://host/a"]
)
def test_a_uri_that_leads_nowhere_is_an_invalid_name(uri: str) -> None:
    with pytest.raises(InvalidName):
        endpoint_of(uri)


@pytest.mark.parametrize("uri", ["malamute://host", "malamute://host:80/"])
def test_a_uri_of_a_broker_is_no_name_of_anything_there(uri: str) -> None:
    with pytest.raises(InvalidName, match="expected /stream/NAME"):
        Uri.parse(uri)

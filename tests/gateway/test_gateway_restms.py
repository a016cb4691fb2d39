"""RestMS: the examples of its specifications, and each type of feed, join and pipe."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from restms_client import DOMAIN, FORMS, RestClient, content_of, gateway_before, message
from running_gateway import WAIT_SECONDS, RunningGateway

import malamute
from malamute.gateway.restms.documents import RESTMS_JSON, RESTMS_XML, Element
from malamute.testing import Broker

NEWS = (
    ("rec.pets.dogs", "Montreal: Canine Championship series opens"),
    ("rec.cars", "The oil shock: does it affect you?"),
    ("rec.pets.dogs", "Steroids: the ugly truth from Montreal"),
    ("rec.pets.cats", "Cat vs. dog: facts or fictions?"),
    ("rec.pets.dogs", "Montreal in chaos: winner is a cat!"),
    ("rec.cars", "Red, white, or blue: what it says about you"),
    ("rec.cars", "Parking - who, when, where, why: a new survey"),
    ("rec.pets.cats", "Superiority: it comes naturally"),
)
"""The example of 4/AMQP9."""

THREE_MESSAGES = b"""
<restms>
  <message address="address.multi.1" message_id="ID1">
    <header name="serial-number" value="0001" />
    <content>It's too cold</content>
  </message>
  <message address="address.multi.2" message_id="ID2">
    <header name="serial-number" value="0002" />
    <content>It's too hot</content>
  </message>
  <message address="address.multi.3" message_id="ID3">
    <header name="message_id" value="ID3" />
    <header name="serial-number" value="0003" />
    <content>It's just right!</content>
  </message>
</restms>
"""


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def shared_gateway(shared_broker: Broker) -> Iterator[RunningGateway]:
    with gateway_before(shared_broker) as gateway:
        yield gateway


@pytest.fixture
def rest(shared_gateway: RunningGateway) -> Iterator[RestClient]:
    with shared_gateway.client() as http:
        yield RestClient(http)


@pytest.mark.parametrize("media", FORMS)
def test_the_news_example_of_restms_over_http(rest: RestClient, media: str) -> None:
    rest.media = media
    feed = rest.feed(f"news {media}", "topic")
    pipe = rest.pipe()
    rest.join(pipe, feed, "rec.pets.*")
    rest.post(feed, *(message(address, title) for address, title in NEWS))
    found = rest.take(pipe, 5)
    assert [(m.get("address"), content_of(m)) for m in found] == [
        (address, title) for address, title in NEWS if address.startswith("rec.pets.")
    ]

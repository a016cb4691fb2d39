from collections.abc import Iterator

import pytest
import zmq


class Context(zmq.Context):
    """A context that holds on to its sockets until the test is over."""

    kept: list[zmq.Socket]

    def socket(self, *arguments, **options) -> zmq.Socket:
        socket = super().socket(*arguments, **options)
        self.kept.append(socket)
        return socket


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    context.kept = []
    yield context
    context.destroy(linger=0)

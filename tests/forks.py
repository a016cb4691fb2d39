"""What processes that tests fork have imported already: that takes longer than most tests."""

import gc

import malamute.cli.broker
import malamute.client.sync.client
import malamute.server.daemon  # noqa: F401

# A garbage collection in one of them would look at all of it, and so copy it: most of the start of a broker.
gc.freeze()

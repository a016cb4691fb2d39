"""The delivery of queued messages: one mechanism for mailboxes and services.

A `Queue` holds messages until each has come to its end. A *consumer* brings credit and a selector; the queue
of a mailbox has one consumer that takes everything, a service has many. Consumers with the same selector form
a *line*. A message that becomes ready goes at once to the consumer that waits longest among the lines that
match its subject; if none has credit, it waits in the backlog of each of these lines. Hence no line ever has
both a waiting message and a waiting consumer, and a consumer that brings credit only has to look at its own
line. Work per message depends on the lines that match it, not on how many consumers or messages there are.

The life of a message, as `Entry.where` has it:

    unstored ──stored──▶ waiting ──credit──▶ (a consumer) ──ack, final reply──▶ settling ──stored──▶ gone
                │           ▲ ▲                  │  │
                │     time  │ └───release, lost──┘  └──reject, too many attempts──▶ a dead letter
                └───────▶ delayed ◀──nak, timeout──

Its end (`Ends.end`) is one transaction with all that follows from it: the outcome for who tracks it, the
dead letter, the reply. If the disk refuses that, the message is where it was before.

A message is ready once it is stored, or at once if nobody asked for a confirmation and none of the queue is
waiting for the disk (so order is kept). What a consumer loses hold of is ready again in its old place.

What was delivered before is `redelivered`, even if the broker was killed right after: nothing is sent before
the disk knows that it may have been delivered. A message for which somebody waits when it comes is marked in
the transaction that stores it, and those that come next are marked with what goes out, so that their delivery
has to wait for nothing more; only one that was not awaited waits for a commit of its own.

What most messages do not have costs them nothing: options are kept beside the entries, by sequence, and a
queue without any asks one question for a whole batch.

    queue        the messages, from put to done       intake     from a command into a queue
    dealing      who gets which of them               line       the order in which they wait
    consumer     who takes them                       keys       requests that stay with a worker
    schedule     from when and until when             ends       expired, purged, dead, and gone
    entry        one message                          options    what a sender may ask for
    identities   what was taken in already            trackers   outcomes, and room for them
    correlations who may withdraw what                dead       dead letters
    cold         records that stay on the disk        marks      what the disk knows of deliveries
    browse       looking into a queue                 budget     what all queues share
    table        all queues of one kind

Source: the MOVE selectors of the Xump notes: the first selector with credit gets the message and goes
to the end of the list.
"""

from malamute.core.delivery.budget import Budget
from malamute.core.delivery.consumer import Consumer
from malamute.core.delivery.entry import ENTRY_BYTES, Entry, size_of
from malamute.core.delivery.intake import take_in
from malamute.core.delivery.line import STALE_MIN, Line
from malamute.core.delivery.queue import Queue
from malamute.core.delivery.table import Queues
from malamute.core.delivery.trackers import Trackers

__all__ = [
    "ENTRY_BYTES",
    "STALE_MIN",
    "Budget",
    "Consumer",
    "Entry",
    "Line",
    "Queue",
    "Queues",
    "Trackers",
    "size_of",
    "take_in",
]

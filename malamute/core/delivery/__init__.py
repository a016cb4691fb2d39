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

Its end (`Queue.end`) is one transaction with all that follows from it: the outcome for who tracks it, the
dead letter, the reply. If the disk refuses that, the message is where it was before.

A message is ready once it is stored, or at once if nobody asked for a confirmation and none of the queue is
waiting for the disk (so order is kept). What a consumer loses hold of is ready again in its old place.

What was delivered before is `redelivered`, even if the broker was killed right after: nothing is sent before
the disk knows that it may have been delivered. A message for which somebody waits when it comes is marked in
the transaction that stores it, so that its delivery has to wait for nothing more; only one that was not
awaited waits for a commit of its own.

What most messages do not have costs them nothing: options are kept beside the entries, by sequence, and a
queue without any asks one question for a whole batch.

    queue        the messages and who gets them       intake     from a command into a queue
    entry, line, consumer   its parts                 options    what a sender may ask for
    keys         requests that stay with a worker     identities what was taken in already
    trackers     outcomes, and room for them          dead       dead letters
    cold         records that stay on the disk        policy     what is configured
    correlations who may withdraw what                budget     what all queues share
    browse       looking into a queue                 table      all queues of one kind

Source: the MOVE selectors of the Xump notes: the first selector with credit gets the message and goes
to the end of the list.
"""

from malamute.core.delivery.budget import Budget
from malamute.core.delivery.consumer import Consumer
from malamute.core.delivery.entry import ENTRY_BYTES, Entry, size_of
from malamute.core.delivery.intake import take_in
from malamute.core.delivery.line import STALE_MIN, Line
from malamute.core.delivery.policy import QueuePolicy
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
    "QueuePolicy",
    "Queues",
    "Trackers",
    "size_of",
    "take_in",
]

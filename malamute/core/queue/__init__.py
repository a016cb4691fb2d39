"""Queues of messages: one mechanism for mailboxes and services.

A `Queue` holds messages until each is settled. A *consumer* brings credit and a selector; the queue of a
mailbox has one consumer that takes everything, a service has many. Consumers with the same selector form a
*group*. A message that becomes ready goes at once to the consumer that waits longest among the groups that
match its subject; if none has credit, it waits in the ready queue of each of these groups. Hence no group
ever has both a waiting message and a waiting consumer, and a consumer that brings credit only has to look at
its own group. Work per message depends on the groups that match it, not on how many consumers or messages
there are.

The life of a message is the table in `malamute.core.queue.state`, which alone changes a state.

Its settlement (`Settlement.settle`) is one transaction with all that follows from it: the outcome for who
tracks it, the dead letter, the reply. If the disk refuses that, the message is where it was before.

A message is ready once it is stored, or at once if nobody asked for a confirmation and none of the queue is
waiting for the disk (so order is kept). What a consumer loses hold of is ready again in its old place.

What was delivered before is `redelivered`, even if the broker was killed right after: nothing is sent before
it is durable that it may have been delivered. A message for which somebody waits when it comes is put below
the watermark in the transaction that stores it, and those that come next with what goes out, so that their
delivery has to wait for nothing more; only one that was not awaited waits for a commit of its own.

What most messages do not have costs them nothing: options are kept beside the entries, by sequence, and a
queue without any asks one question for a whole batch.

    queue          the messages, from put to done     enqueue             from a command into a queue
    dispatch       choosing a consumer for each       waiters             consumer groups, ready queues
    consumer       who takes messages                 affinity            keys that stay with a worker
    state          the states of a message, and what changes them
    schedule       from when and until when           settlement          what messages end with
    entry          one message                        options             what a sender may ask for
    deduplication  what was enqueued already          trackers            outcomes, and room for them
    correlations   who may withdraw what              dead_letters        what nobody could or would take
    paging         records that stay on the disk      delivery_watermark  what may have been delivered
    browse         looking into a queue               policy              what is configured
    table          all queues of one kind             limits              what all queues share
    settlement_log the history of outcomes            flush               what is handed over at the end

Source: the MOVE selectors of the Xump notes: the first selector with credit gets the message and goes
to the end of the list.
"""

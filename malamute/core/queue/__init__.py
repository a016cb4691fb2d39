"""Queues of messages: one mechanism for mailboxes and services.

A `Queue` holds messages until each is settled. A *consumer* brings credit and a selector; the queue of a
mailbox has one consumer that takes everything, a service has many. Consumers with the same selector form a
*group*. A message that becomes ready goes at once to the consumer that waits longest among the groups that
match its subject; if none has credit, it waits in the ready queue of each of these groups. Hence no group
ever has both a waiting message and a waiting consumer, and a consumer that brings credit only has to look at
its own group. Work per message depends on the groups that match it, not on how many consumers or messages
there are.

The life of a message is the table in `malamute.core.queue.state`, which alone changes a state.

Its settlement (`Settlement.settle`) is one transaction with all that follows: the outcome for a sender
that tracks it, the dead letter, the reply. If the disk refuses that, the message is where it was before.

A message is ready once it is stored, or at once if nobody asked for a confirmation and none of the queue is
waiting for the disk (so order is kept). What a consumer loses hold of is ready again in its old place.

What was delivered before is `redelivered`, even if the broker was killed right after: nothing is sent before
it is durable that it may have been delivered. A message for which somebody waits when it comes is put below
the watermark in the transaction that stores it, and those that come next with what goes out. So their
delivery has to wait for nothing more. Only one that was not awaited waits for a commit of its own.

What most messages do not have costs them nothing: options are kept beside the entries, by sequence, and a
queue without any asks one question for a whole batch.

The files are in layers, the lower ones below. None imports one above it, not even for a type: what a part
has to report to those above, it returns or calls a function with that it was given.

    what sessions and operators do with a queue
        enqueue         from a command into a queue     source              a consumer, as its session has it
        purge           removal and withdrawal          redrive             dead letters are sent again
        browse          looking into a queue            table               all queues of one kind
        trackers        outcomes, and room for them     recovery            starts, and damage in the store
        mailbox         messages to one owner           service             requests shared by workers

    queue               the order in which the parts are asked

    the parts of a queue
        settlement      what messages end with          dead_letters        what nobody could or would take
        dispatch        choosing a consumer for each    waiters             consumer groups, ready queues
        affinity        keys that stay with a worker    schedule            from when and until when
        paging          records that stay on the disk   correlations        what a sender may withdraw
        steps           work of many iterations

    what all queues share
        limits          room and sequences              settlement_log      the history of outcomes
        delivery        sending, and the watermark      deduplication       what was enqueued already

    what these work on
        consumer        what takes messages             usage               what a queue takes of the limits
        options         what a sender may ask for       entry               a message, and all of a queue
        state           what may happen to a message

Source: the MOVE selectors of the Xump notes: the first selector with credit gets the message and goes
to the end of the list.
"""

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

A message is ready once it is stored, or at once if it needs no confirmation and no message of the queue waits
for the disk (so order is kept). With a waiting consumer it is then delivered before it is handed to the store
(`unwritten`), and never stored if it is settled soon. A message that a consumer loses is ready again in its
old place.

A second delivery is `redelivered`, even if the broker was killed right after the first: the watermark is
durable before the delivery. A message with a waiting consumer is put below the watermark in the transaction
that stores it, and the next ones with each delivery, so these wait for nothing more. Only a message without a
waiting consumer waits for a commit of its own.

Options cost a message without them nothing: they are kept beside the entries, by sequence, and a queue
without any asks one question for a whole batch.

The files are in layers, the lower ones below. None imports one above it, not even for a type: a part reports
by return values, or by a function that it was given.

    operations of sessions and operators on a queue
        enqueue         from a command into a queue     source              a consumer, as its session has it
        purge           removal and withdrawal          redrive             dead letters are sent again
        browse          looking into a queue            table               all queues of one kind
        trackers        outcomes, and room for them     recovery            starts, and damage in the store
        mailbox         messages to one owner           service             requests shared by workers
        temporary       the users of such mailboxes

    queue               the order in which the parts are asked

    the parts of a queue
        settlement      the ends of messages            dead_letters        rejected and failed messages
        dispatch        choosing a consumer for each    waiters             consumer groups, ready queues
        affinity        keys that stay with a worker    schedule            from when and until when
        paging          records that stay on the disk   correlations        what senders may withdraw
        steps           work of many iterations         unwritten       delivered before the store knows them

    shared by all queues
        limits          room and sequences              settlement_log      the history of outcomes
        delivery        sending, and the watermark      deduplication       identities of enqueued messages

    the data of all these
        consumer        credit and deliveries           usage               the part of a queue in the limits
        options         properties of a message         entry               a message, and all of a queue
        state           the states of a message

Source: the MOVE selectors of the Xump notes: the first selector with credit gets the message and goes
to the end of the list.
"""

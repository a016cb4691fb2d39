"""Feeds: durable rules of the broker that pass messages on, from one place to another.

A feed has a name of its own at its *source*, and passes what meets its criteria to its *target*. Both are
places: a stream, a mailbox or a service. A stream keeps its messages, so a feed from a stream copies them. A
message of a queue is for one, so a feed from a mailbox or a service moves it (`queue_feed`). What follows is
about feeds from streams, but for what is said of operators, rights and circles.

Ordinary subscriptions of the stream get their copies beside it, at once (COPY); what comes into a queue
goes to one of its consumers, when it has credit (MOVE). A feed is a reader of the stream like a
subscription, inside the broker. Its position is the cursor `$feed/NAME` of the stream, stored in the
transaction that stores what it has passed on, so a crash neither loses a message nor passes one on twice.
Its credit is the room at the target: when that is full, the feed falls into REPLAY and goes on out of the
ring when there is room, so a publisher is never slowed. What the ring has dropped meanwhile is announced by
the event `feed.gap`.

A feed takes a message when it is on the disk: what could not be stored must not be passed on. And it waits
for the outcome of what it has put before it puts more in a later iteration. So when the disk refuses it, it
goes back to the first of these messages, and nothing behind them is at the target yet.

No message goes in a circle: a feed that would close one is refused when it is set. All feeds are known
then, so no message has to carry where it has been.

A feed that an operator has begun in the past had later positions before. Where the store is damaged, one of
those may come back in place of what it had stored since. So it is stored with the feed where it began and
where the stream ended then: a position between the two that may be old is none, and the feed begins again.

What an operator does to a feed is done when it is on the disk: until then it rests, and if the disk
refuses, it goes on as it was. A feed and its position are stored and deleted together. So a feed on the
disk has its own position, and never that of an earlier feed of the same name.

A feed acts with the rights of the user who has set it. When they end, by other rules, with the account or
with the key of the token, it is stopped where it is, over restarts, until an operator sets it again.

The sender of what it makes in a queue is that of the message, and its properties name the source and the
sequence there. Nobody waits for an answer: the final reply completes it, and replies go nowhere.

Where to read: `rule` for what is stored of a feed, `target` for where it puts what it takes, `feed` for what
all have in common. Then `stream_feed` and `queue_feed` for each kind at work, `start` for how each begins,
`table` for all of them and the changes of operators.

Source: COPY and MOVE are those of the Xump notes.
"""

"""Feeds: durable rules that pass messages from a source to a target.

A feed has a name of its own at its *source*, and passes matching messages to its *target*. Both are places: a
stream, a mailbox or a service. A stream keeps its messages, so a feed from a stream copies them. A message of
a queue is for one, so a feed from a mailbox or a service moves it (`queue_feed`). The following is about
feeds from streams, except operators, rights and circles.

Ordinary subscriptions of the stream get their copies at once (COPY); a message in a queue goes to one of its
consumers with credit (MOVE). A feed is a reader of the stream like a subscription, inside the broker. Its
position is the cursor `$feed/NAME` of the stream, stored in the transaction of the passed messages, so a
crash neither loses a message nor passes one on twice. Its credit is the room at the target: when that is
full, the feed falls into REPLAY and goes on out of the ring when there is room, so a publisher is never
slowed. Messages that the ring dropped meanwhile are reported by the event `feed.gap`.

A feed takes durable messages only, and waits for the outcome of the passed ones before it passes more in a
later iteration. So when the disk refuses them, it returns to the first, and no later message is at the
target.

No message goes in a circle: a feed that would close one is refused when it is set. All feeds are known
then, so no message has to carry where it has been.

A feed that an operator has begun in the past had later positions before. Where the store is damaged, one of
those may replace its newer position. So the feed is stored with its beginning and the end of the stream at
that time: a position between the two that may be old is none, and the feed begins again.

A change of a feed is in force when it is durable: until then the feed pauses, and if the disk refuses, it
continues as before. A feed and its position are stored and deleted together. So a feed on the disk has its
own position, and never that of an earlier feed of the same name.

A feed acts with the rights of the user who has set it. When they end, by other rules, with the account or
with the key of the token, it is stopped where it is, over restarts, until an operator sets it again.

A message made in a queue has the sender of its original, and properties with the source and the sequence
there. No requester waits: the final reply completes it, and replies are dropped.

The modules: `rule` is a stored feed, `key` the origin of its keys, `target` its destination, `feed` the
common part of all; `stream_feed` and `queue_feed` each kind at work, `start` their beginnings, `table` all of
them and the changes of operators.

Source: COPY and MOVE are those of the Xump notes.
"""

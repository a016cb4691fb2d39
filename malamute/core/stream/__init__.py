"""The streams: what is published comes to every reader that wants it, live or in replay.

table           the streams by name, and what the store kept of them
subscribing     the begin of a subscription; `start` is its position, `deletion` the end of a history
stream          one stream: publish, chunk, stored, retention; it makes the parts below
progress        the sequences that the parts go by; `numbering` is which of them have messages
live            chunks held, offered to readers that are LIVE, and readers that fall behind
cursors         the named positions of readers, and whose they are
chunk           the messages of one iteration; `chunk_part` those of them that one reader gets
audience        what each reader wants, by groups of equal selectors; `dispatch` brings them a chunk, in steps
subscription    one reader: its position and its credit, LIVE or in REPLAY
replay          the readers that are behind, out of memory or the journal; `gaps` is what they will not get
expiry, ageing  what is over: a message by its time to live, the oldest by the retention of the stream
"""

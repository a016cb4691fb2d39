"""The streams: what is published comes to every reader that wants it, live or in replay.

stream          one stream, and all of them: publish, chunks, cursors, retention
chunk           the messages of one iteration; `chunk_part` those of them that one reader gets
audience        what each reader wants, by groups of equal selectors; `dispatch` brings them a chunk, in steps
subscription    one reader: its position and its credit, LIVE or in REPLAY
replay          the readers that are behind, out of memory or the journal; `gaps` is what they will not get
start           the position at which a subscription begins
expiry, ageing  what is over: a message by its time to live, the oldest by the retention of the stream
"""

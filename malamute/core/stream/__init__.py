"""The streams: published messages reach every matching reader, live or in replay.

table           the streams by name, and their stored state
subscribing     the begin of a subscription; `start` is its position, `deletion` the end of a history
stream          one stream: publish, chunk, stored, retention; it makes the parts below
progress        the sequences that the parts go by; `numbering` is which of them have messages
live            chunks held, offered to readers that are LIVE, and readers that fall behind
cursors         the named positions of readers, and their owners
chunk           the messages of one iteration; `chunk_part` those of them that one reader gets
audience        the readers, by groups of equal selectors; `dispatch` brings them a chunk, in steps
subscription    one reader: its position and its credit, LIVE or in REPLAY
replay          the readers that are behind, out of memory or the journal; `gaps` are missing messages
duplicates      the ids of published messages, by which a command is stored once
expiry, ageing  the end of messages: by time to live, or by the retention of the stream
"""

"""Buckets: values by key, each with a revision and perhaps a time to live.

A bucket stands beside the queues, and is less than a database: no scan, no second index, and no transaction
but the acknowledgement of a delivery together with a put (decision 64).

    entry    a key's revision, expiry, user and value as one piece of bytes, in memory as in the store
    keys     the entries of one bucket, with what they take and the timers of their expiry
    bucket   one bucket: the state of a key for readers, for writers and for those who watch it
    watch    a source of a session that has the states of some keys
    table    the buckets by name, and the commands about them

A key has two states while a change of it is under way to the disk. The *newest* is what the next change is
compared with; that change is stored only if the one before it is. The *durable* one is what readers get, so
nobody reads what a crash could take back.
"""

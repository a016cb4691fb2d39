"""One turn of the broker's loop: its effects, counters, timers and faults.

effects         all that an iteration does outside of the core: sends, appends, reads, later steps
stage           the operations of one transaction of the store
stored_values   values with a table of their own; `recovery` restores them at the start
timers          actions at a time; `workflow` for work in steps
credit, settings, named_table       values that several engines have
dedup_quota     the limit in bytes of the ids by which duplicates are found
metrics, health, faults, grace_period   counts, the state of the whole, refusals, and the first minutes
"""

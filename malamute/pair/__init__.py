"""Pairs: two brokers that hold one store, one of which serves.

`state` is the value in the register, `rules` decide who serves and who counts for a confirmation,
`replication` is the order of records and write sets, and `codec` the form of frames: all without clock,
socket and chance. `register` has the engines that keep the value.
"""

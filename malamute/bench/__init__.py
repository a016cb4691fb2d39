"""The benchmarks of `malamute bench`: publishing, a mailbox, a service and a replay on the machine of a user.

Every benchmark starts a broker of its own, as a process, on LMDB in a temporary directory, with its fsync.
Publishers, subscribers and workers are further processes, which use the client as any program would. All of
them share the machine, so a figure is for the whole.

`scenarios` are the benchmarks with the same columns; `replay` has its own options, rows and `measure`. Both
share `workspace` (a broker), `processes` (which run `workloads` and begin together), `machine` (its
description, and the processor time and memory of the broker), `figures` (medians and extents) and `relay`
(the bare ROUTER that a service is compared with). Other brokers, hostile clients and curves are measured by
`tests/bench/lab`.
"""

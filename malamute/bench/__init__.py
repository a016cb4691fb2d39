"""The benchmarks: what this machine does. `malamute bench` runs them and prints their rows.

Every benchmark starts a broker of its own, as a process, on LMDB in a temporary directory, with its fsync.
Publishers, subscribers and workers are further processes, which use the client as any program would. All of
them share the machine, so a figure is for the whole.

`scenarios` are those that have the same columns. Each of the others is a module of its own, with its options,
its rows and `measure`: `commands`, `hostile`, `idle`, `iterator`, `journal`, `match`, `queues`, `replay`,
`scale`, `security`, `slow_consumer`, `spark` and `start`. `peers` is a package, since it speaks with brokers
of other projects.

What they share: `workspace` gives them a broker, `processes` runs `workloads` and lets them begin together
(`asyncio_workloads` are those on an event loop), `machine` describes what it is measured on and watches the
broker, `figures` makes figures of what was measured. `raw_peer` speaks the protocol without the client,
`attacks` use it, and `relay` is the bare ROUTER to compare a service with.
"""

"""`malamute bench`: what this machine does.

Every benchmark starts a broker of its own, as a process, on LMDB in a temporary directory, with its fsync.
Publishers, subscribers and workers are further processes, which use the client as any program would. All of
them share the machine, so a figure is for the whole.

`machine` tells what it is measured on, and watches the broker. `actors` run in the processes and `stage` lets
them begin together; `scenarios` put them together; `relay` is the bare ROUTER to compare a service with;
`report` has the columns, and `command` the commands.

Others have rows of their own: `hostile`, `idle`, `journal`, `queues`, `replay`, `slow_consumer` and
`start`, with their commands in `history`; `ground` gives them a broker. Options that commands share are in
`options`.
"""

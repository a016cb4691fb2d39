"""The laboratory: benchmarks beside other brokers, under attack, along curves, and of single mechanisms.

`make bench` runs them with the harness of `malamute.bench`. Each module has its options, its rows and
`measure`: `commands`, `filters`, `gateway`, `hostile`, `idle`, `iterator`, `journal`, `latency`, `match`,
`queues`, `scale`, `security`, `slow_consumer`, `spark` and `start`. `peers` is a package of drivers of other
brokers. `raw_peer` speaks the protocol without the client, and `attacks` are clients that cost a broker most.
"""

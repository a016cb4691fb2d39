"""Malamute beside other brokers and bare sockets, in the same run on one machine: `make bench ARGS="peers"`.

`table` says what is measured with whom, how each server is started and what it does for durability; it
imports none of the clients, which are an extra. Each of `nats`, `redis`, `rabbitmq`, `mosquitto`, `zeromq`
and `own` has the workloads in the words of one client library, as its documentation shows them. `server`
starts a program on loopback under a `guard`, which ends it whatever becomes of us, and `measure` runs the
rounds.
"""

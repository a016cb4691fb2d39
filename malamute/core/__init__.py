"""The pure part of the broker: sessions, streams, mailboxes, services. Begin with `broker.Core`.

iteration   effects, counters, timers, faults: each room above stands on it
identity    users, their rights, groups and quotas
session     sessions of clients, confirmations and answers
stream      publish and subscribe
queue       mailboxes and services
feed        durable rules that pass messages on
reports     events and records of changes on streams of the broker
admin       queries and changes of operators

Beside the rooms, `commands` has a row for each command of the wire, `engines` names the engines, `startup`
and `configuration` begin and reconfigure a broker, and `review` checks its totals.
"""

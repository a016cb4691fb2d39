"""The runner of links, a client of its broker and of the sources: `malamute pack run`.

The definitions are at the runner's own broker, the target. For each link that may run, a *carrier* reads the
source and forwards the messages, as the columns that came: no message becomes an object. Credit at the source
comes back when the target has confirmed, so a slow target slows the source's deliveries and nobody else.

A runner keeps nothing. How far a link has come is asked of the target at each beginning, and named in each
command, so a runner may die at any moment, and several may run.

The modules: `runner` follows the definitions, `carrier` carries the messages of one link, `credentials` finds
the proofs for sources, `discovery` and `zre` announce the broker and find others.
"""

"""Links: streams of other brokers, copied into streams of this one by a runner outside of the broker.

A link is defined at its *target*, and a runner (`malamute.pack`), a client of both brokers, carries its
messages. The broker keeps how far the link has come in the source, and stores that in the commit of the
messages that came with it. A command that names another position than the kept one is refused. So each
message comes once, whatever becomes of the runner, of its session and of its answers, and however many
runners there are.

Commands may follow each other before the first of them is durable: each relies on the commit of the one
before it, so if the disk refuses one, none of the later ones is stored.

A setting gives the link a new *generation*, by which the commands of a runner that knows an older one are
refused. A generation is the time of the setting, and grows, so that of several links the newest is known.

A link acts with the rights of the user who has set it, as a feed does, and is stopped when they end.

Records carry nothing of where they have been. In place of that the runner tells, before it carries and every
few seconds while it does, by which *ways* messages come to the source: over all its links and feeds, each of
which is notified of the same. A link that finds its own stream there is in a circle, and the newest link of a
circle is stopped, since it has closed it. So a circle of links that are set one after the other never passes
a message, and links that are set at once go round for the few seconds that the ways take.

The modules: `rule` is a stored link, `ways` finds circles, `table` has all links and the changes of
operators.
"""

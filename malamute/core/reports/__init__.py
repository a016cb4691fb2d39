"""Reports of the broker on its own streams: events, changes of operators, refusals."""

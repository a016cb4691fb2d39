"""`malamute demo`: real flights and weather through all three patterns, and every count checked.

`rows` reads the files as messages, `tally` counts them without a broker, `participants` are the subscribers
and workers, `play` runs them, and `command` shows the results.
"""

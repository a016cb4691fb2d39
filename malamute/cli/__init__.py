"""The command `malamute`.

The modules: `root` has the table of subcommands, and `lazy` loads each when it is first used. The files
share: `options` has the connection, out of `contexts` if need be. `settings`, `payload`, `units` and
`sending` parse arguments and input. `printing`, `tables`, `progress`, `error_output` and `exit_codes` report
results. `keyboard` and `signals` handle keys and signals; `admin` has queries and changes. The other files
are one for each command, or for a few related ones; `demo` is a package of its own. Slow modules are imported
when they are needed, so that help and completion start at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    from malamute.cli.standard_streams import open_all

    open_all()
    from malamute.cli.root import cli

    cli(prog_name="malamute")

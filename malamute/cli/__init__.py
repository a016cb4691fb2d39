"""The command `malamute`.

The modules: `root` has the table of subcommands, and `lazy` loads each when it is first used. They share:
`options` says where to connect, out of `contexts` if need be. `settings`, `payload`, `units` and `sending`
read what is typed. `printing`, `tables`, `progress`, `error_output` and `exit_codes` report what came of it.
`keyboard` and `signals` notice what is pressed; `admin` asks the broker. The rest is a file for each
command, or for a few that belong together; `demo` is a package of its own. Nothing that is slow to load is
loaded before it is needed: help and completion are to be there at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    from malamute.cli.standard_streams import open_all

    open_all()
    from malamute.cli.root import cli

    cli(prog_name="malamute")

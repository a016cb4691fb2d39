"""The jobs for spark-submit: the same commands and options as `malamute spark`.

    spark-submit --master spark://host:7077 job.py analyze s3://bucket/history --to s3://bucket/report

The master and all settings are those of spark-submit. The driver and the executors need the wheel with its
extra, `malamute[spark]`, and nothing else.
"""

from __future__ import annotations

import sys

from malamute.cli.root import cli

if __name__ == "__main__":
    cli(["spark", *sys.argv[1:]])

"""The parent of the workers of Spark, as pyspark's own, which has imported all that they import.

Only one thread is there before they are forked, that of jemalloc, which knows of forks.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.dataset  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import malamute.spark.match
import malamute.spark.partial_aggregates
import malamute.spark.replay
import malamute.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()

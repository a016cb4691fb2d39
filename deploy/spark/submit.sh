#!/usr/bin/env bash
# Run a job on a cluster: deploy/spark/submit.sh analyze /exports --to /reports/today
#
#   MASTER         Spark's master; without it all cores of this machine
#   SPARK_SUBMIT   another spark-submit than that of the installed pyspark
#   PYTHON         the interpreter of driver and executors, which has malamute[spark]
#   SUBMIT_ARGS    more arguments of spark-submit, such as "--executor-memory 4g --conf spark.cores.max=8"
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
submit=${SPARK_SUBMIT:-$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')/bin/spark-submit}
export PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python
# shellcheck disable=SC2086  # several arguments in one variable
exec "$submit" --master "${MASTER:-local[*]}" --name "malamute $1" \
    --conf spark.sql.session.timeZone=UTC ${SUBMIT_ARGS:-} "$here/job.py" "$@"

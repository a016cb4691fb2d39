import sys
from pathlib import Path

# The bench of the core's tests is the stage of the transcripts.
sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

import sys
from pathlib import Path

# The core is counted on the bench that its tests have.
sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

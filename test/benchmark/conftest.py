"""benchmark/ holds scripts beside each other: they find one another by the path that Python gives a script."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmark"))

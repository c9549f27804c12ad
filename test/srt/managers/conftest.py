import sys
from pathlib import Path

SUPPORT = str(Path(__file__).resolve().parents[2])
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

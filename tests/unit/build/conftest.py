import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "build"), str(ROOT / "perf"), str(Path(__file__).parent)]

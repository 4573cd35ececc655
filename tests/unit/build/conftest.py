import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / folder) for folder in ("build", "build/training", "perf")]
sys.path.insert(0, str(Path(__file__).parent))

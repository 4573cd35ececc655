"""A small Chatterbox with two voices."""

from __future__ import annotations

import asyncio
import sys

from parley.launcher.options import ROOT


def write_weights(folder):
    """Write them; the environment of a server that is to use them."""
    sys.path.insert(0, str(ROOT / "build"))
    from chatterbox_export.small_listeners import write_random_voices
    from chatterbox_export.small_s3gen import write_small_s3gen
    from chatterbox_export.small_t3 import write_small_t3

    write_small_t3(folder)
    write_small_s3gen(folder)
    asyncio.run(write_random_voices(folder, ["default", "other"]))
    return {f"PARLEY_WEIGHTS_{name}": str(folder) for name in ("T3", "S3GEN", "CHATTERBOX")}

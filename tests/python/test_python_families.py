"""Every model family of mlx_lm with compressed caches (scripts/families.py), against docs/models.md."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_family_is_compressed_or_declined_for_a_reason(build_dir):
    """Runs all of them, as the script does that writes the page, and compares verdicts with the page."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/families.py", "--check"],
        capture_output=True,
        text=True,
        timeout=600,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TERSOR_BUILD": str(build_dir)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" compressed ") >= 60

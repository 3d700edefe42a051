"""What a release packs is the same, bit for bit, whoever packs it and when; an image has what it is built from."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tools.release import archive, artefacts

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["made/a.txt", "made/run.sh", "made/z.txt"]


def packed(path: Path, names: Sequence[str], time: int, owner: str, mode: int) -> Path:
    """Write a tar of these files, as somebody would at some time."""
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            one = tarfile.TarInfo(name)
            one.size, one.mtime, one.uname = 3, time, owner
            one.mode = mode | (0o111 if name.endswith(".sh") else 0)
            tar.addfile(one, io.BytesIO(b"abc"))
    return path


def test_time_owner_order_and_umask_do_not_matter(tmp_path: Path) -> None:
    """What can be run still can."""
    one = archive.normalised(packed(tmp_path / "one.tgz", NAMES, 1000, "ann", 0o600), 1_700_000_000)
    other = archive.normalised(packed(tmp_path / "other.tgz", NAMES[::-1], 2000, "bob", 0o664), 1_700_000_000)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert [(each.name, each.mode, each.mtime) for each in tar] == [
            (name, 0o755 if name.endswith(".sh") else 0o644, 1_700_000_000) for name in NAMES
        ]
        content = tar.extractfile(NAMES[0])
        assert content is not None
        assert content.read() == b"abc"


def test_the_folder_and_its_times_do_not_matter(tmp_path: Path) -> None:
    made = []
    for place, time in (("a", 1000), ("another/place", 2000)):
        for name in ("z.html", "sub/a.html"):
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            os.utime(path, (time, time))
        made.append(archive.folder(tmp_path / place, "docs", 1_700_000_000))
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as tar:
        assert tar.getnames() == ["docs/sub/a.html", "docs/z.html"]


def test_an_image_has_what_it_is_built_from() -> None:
    """Each file and folder that the Dockerfile copies is tracked, and let through by .dockerignore."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    files = list(artefacts.image_files(ROOT))
    assert {"exporter/Dockerfile", "exporter/requirements.lock", "grafana/dashboards", "setup.py"} <= set(files)
    for one in files:
        assert any(each == one or each.startswith(f"{one}/") for each in listed), one
        assert one == ".dockerignore" or any(one == each or one.startswith(f"{each}/") for each in let_through), one

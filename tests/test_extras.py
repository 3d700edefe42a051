"""What is missing is installed from where this package came: nobody is sent to a name that anybody can register."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tachograph import extras
from tachograph._version import __version__

ROOT = Path(__file__).resolve().parents[1]
METADATA = f"""\
Metadata-Version: 2.4
Name: tachograph
Version: {__version__}
Project-URL: Issues, https://example.com/issues
Project-URL: Source, https://example.com/tachograph
"""


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        ({"url": "file:///src/t", "dir_info": {"editable": True}}, "pip install -e '/src/t[tools]'"),
        ({"url": "file:///src/t", "dir_info": {}}, "pip install 'tachograph[tools] @ file:///src/t'"),
        ({"url": "file:///w/t.whl", "archive_info": {}}, "pip install 'tachograph[tools] @ file:///w/t.whl'"),
        (
            {"url": "https://example.com/t", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "pip install 'tachograph[tools] @ git+https://example.com/t@0a1b'",
        ),
        (None, f"pip install 'tachograph[tools] @ git+https://example.com/tachograph@v{__version__}'"),
    ],
    ids=["editable", "checkout", "wheel", "repository", "index"],
)
def test_it_is_installed_from_where_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: dict[str, object] | None, said: str
) -> None:
    """As pip has noted; of an index it notes nothing, and the release's repository is named."""
    folder = tmp_path / f"tachograph-{__version__}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA, encoding="utf-8")
    if noted is not None:
        (folder / "direct_url.json").write_text(json.dumps(noted), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert extras.command("tools") == said
    local = noted is not None and "dir_info" in noted
    assert extras.checkout() == (Path("/src/t") if local else None)
    assert extras.repository() == "https://example.com/tachograph"


def test_modules_on_a_path_are_those_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not installed, so nobody has noted where it came from."""
    monkeypatch.setattr("sys.path", [])
    assert extras.command("exporter,tools") == "pip install '.[exporter,tools]' in its checkout"


def test_nobody_is_sent_to_a_bare_name() -> None:
    """Neither by a document nor by a message."""
    listed = ["git", "ls-files", "*.md", "*.py", "*.html"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    sent = re.compile(r"pip3? install (?:-\S+ )*['\"]?tachograph(?!\[\{extra\}\] @)")
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in files.stdout.split() if path != "CHANGELOG.md"}
    assert texts
    found = [path for path, text in texts.items() if not path.startswith("tests/") and sent.search(text)]
    assert found == []

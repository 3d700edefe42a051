"""Debian's Alertmanager, made to run from any folder.

Debian's build reads its built-in templates from /usr/share and ends if they are not there. As conda does with its
packages, the path in the program is replaced by one of the same length: that of file descriptor 9, which a wrapper
opens on the unpacked folder. Upstream's builds carry the templates inside and are left as they are.
"""

from __future__ import annotations

from pathlib import Path

BUILT_IN = b"/usr/share/prometheus/alertmanager"
FROM_WRAPPER = b"/proc/self/fd/9".ljust(len(BUILT_IN), b"/")
SUFFIX = ".relocated"
WRAPPER = """\
#!/bin/sh
exec 9<"${0%/*}/../share/prometheus/alertmanager"
exec "$0.relocated" "$@"
"""


def relocate(program: Path) -> None:
    """Put a wrapper in the place of Debian's Alertmanager, unless that has been done or is not needed."""
    contents = program.read_bytes()
    if BUILT_IN not in contents:
        return
    changed = program.with_name(program.name + SUFFIX)
    changed.write_bytes(contents.replace(BUILT_IN, FROM_WRAPPER))
    changed.chmod(0o755)
    wrapper = program.with_name(program.name + ".wrapper")
    wrapper.write_text(WRAPPER, encoding="ascii")
    wrapper.chmod(0o755)
    wrapper.replace(program)

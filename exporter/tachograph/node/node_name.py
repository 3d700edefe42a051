"""The name of this node."""

from __future__ import annotations

import os
import socket


def node_name() -> str:
    """Return the node's name: in a pod, whose host name is its own, the one that the chart hands in."""
    return os.environ.get("NODE_NAME") or socket.gethostname()

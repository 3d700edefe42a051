"""`python -m tools.mutation`: see `hunt.py`."""

from __future__ import annotations

from tools.mutation.hunt import main

main()

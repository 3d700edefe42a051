"""Exporters as quick_exporter.py has them, each forked from this process, which has imported what they need."""

import sys

from tachograph.node import app, command
from tests.forking import asked

app.TICK_SECONDS = 0.05
arguments, file = asked()
file.close()
sys.exit(command.main(arguments))

"""The faults of a scenario (`docs/scenarios.md`): a dataclass for each, with its parameters and what it changes.

A fault that changes steps takes effect with the first step that begins at or after `at`; the others exactly at `at`.
"""

from tachograph_lab.scenario.faults.fault import *
from tachograph_lab.scenario.faults.hardware import *
from tachograph_lab.scenario.faults.learning import *
from tachograph_lab.scenario.faults.monitoring import *
from tachograph_lab.scenario.faults.processes import *
from tachograph_lab.scenario.faults.steps import *

FAULTS: dict[str, type[Fault]] = {kind.word: kind for kind in Fault.__subclasses__()}
"""Every fault by its word in a scenario file."""

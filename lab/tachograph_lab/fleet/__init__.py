"""A fleet that trains in simulated time: ranks send the frames of real ones, GPUs and hosts read like real ones.

`Simulation` runs a scenario; `VirtualNode` is the real exporter on one of its nodes, with the simulation's clock.
"""

from tachograph_lab.fleet.cluster import SimulatedCluster as SimulatedCluster
from tachograph_lab.fleet.cluster import simulate as simulate
from tachograph_lab.fleet.messages import RankMessage as RankMessage
from tachograph_lab.fleet.simulated_node import SimulatedNode as SimulatedNode
from tachograph_lab.fleet.simulation import EPOCH as EPOCH
from tachograph_lab.fleet.simulation import Simulation as Simulation
from tachograph_lab.fleet.virtual_node import VirtualNode as VirtualNode

"""bench."""

from helpers.bench.peers import OUTPUTS, PEERS, Method, Peer, environment, not_installed
from helpers.bench.speed import bench, randomise, table

__all__ = ["Method", "OUTPUTS", "PEERS", "Peer", "bench", "environment", "not_installed", "randomise", "table"]

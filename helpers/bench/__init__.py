"""What a capture costs beside the bare model and beside other libraries."""

from helpers.bench.installation import environment, not_installed
from helpers.bench.peers import OUTPUTS, PEERS, Method, Peer
from helpers.bench.speed import bench, randomise, table

__all__ = ["Method", "OUTPUTS", "PEERS", "Peer", "bench", "environment", "not_installed", "randomise", "table"]

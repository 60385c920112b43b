"""What sandboxes cost on rented nodes, and what services that bill a sandbox would charge for the same use."""

from orchard.sandbox.cost.estimate import Bill, Estimate, PeerBill, Use, estimate
from orchard.sandbox.cost.prices import Catalogue, Node, Peer, catalogue

__all__ = ["Bill", "Catalogue", "Estimate", "Node", "Peer", "PeerBill", "Use", "catalogue", "estimate"]

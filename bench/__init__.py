"""What Orchard costs, beside the physical floor and its peers, in one run: ``python -m bench``."""

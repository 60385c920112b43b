"""What drivers of agent *libraries* share: an environment of its own for each, and a process forked for each run."""

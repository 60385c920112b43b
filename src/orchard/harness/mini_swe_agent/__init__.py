"""Driver of the real mini-swe-agent, beside the sandbox: its commands act only through a bridge to one sandbox."""

"""Driver of the real OpenHands agent, beside the sandbox: its tools act only through a bridge to one sandbox."""

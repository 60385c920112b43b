"""What is to be done: the task model and its loaders."""

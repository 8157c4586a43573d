"""The commands, one module for those that belong together; importing one adds them to ``app``."""

"""The commands, grouped into modules; importing a module adds its commands to ``app``."""

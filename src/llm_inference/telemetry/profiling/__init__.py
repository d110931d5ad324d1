"""Where an engine's time goes: figures of a profiled stretch, read from its trace, and a diagnosis of them in words."""

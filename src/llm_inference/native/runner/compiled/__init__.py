"""A decoder of the Llama family in C: its kernels, the panels that they read, the door to them.

The sources are compiled for the machine that they run on; `step.h` states the interface.
"""

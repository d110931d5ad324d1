"""A decoder of the Llama family as an OpenVINO graph: its weights, its nodes, how it is compiled.

Imports openvino at the top, so nothing but `openvino_runner.py` imports it, and that only when it is chosen.
"""

"""A fake of the NVIDIA driver library: real pynvml, real loader, answers from a recorded dump.

``signatures`` lists the functions with their inputs and outputs. ``library`` writes them as C and compiles
them. ``script`` turns a dump and a list of faults into the answers. ``plugin`` has the fixtures.
"""

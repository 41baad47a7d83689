"""A stand-in for the NVIDIA driver library: real pynvml, real loader, answers from a recorded dump.

``signatures`` says which functions exist and what they take and give; ``library`` writes them as C and
compiles; ``script`` turns a dump and a list of faults into the answers; ``plugin`` holds the fixtures.
"""

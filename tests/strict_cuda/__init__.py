"""A strict fake of torch.cuda over CPU tensors: it tests order and rules, never kernels or speed.

``machine`` keeps time, streams, events and errors; ``memory`` counts bytes; ``tensors`` watches torch's operations on
tensors "on the device"; ``graphs`` records and replays; ``install`` replaces torch.cuda with all of it. Each rule
names the place in torch's source that it follows. docs/method.md lists what the fake cannot test.
"""

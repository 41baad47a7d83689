"""A strict fake of torch.cuda over CPU tensors: it proves order and rules, never kernels or speed.

``machine`` keeps time, streams, events and errors; ``memory`` counts bytes; ``tensors`` watches what torch
does to the tensors that lie "on the device"; ``graphs`` records and replays; ``install`` puts it all instead
of torch.cuda. Each rule names the place in torch's source that it follows. What it cannot prove is in
docs/method.md.
"""

"""User models of many kinds, each as the text of a file; all of them train in a plain loop."""

from __future__ import annotations

HEAD = """
import dataclasses, functools, random, typing
from collections import UserDict
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
"""

PAIR = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        INIT

    def forward(self, ARGUMENTS):
        BODY

def build(n):
    net = Net()
    return net, INPUTS, TARGETS, ENDS
"""
USUAL_PAIR = {
    "head": "",
    "init": "pass",
    "arguments": "x",
    "body": "return self.second(self.first(x).relu())",
    "inputs": "torch.randn(n, 8)",
    "targets": "torch.randint(4, (n,))",
    "loss": "nn.CrossEntropyLoss()",
    "optimizer": "",
}


def pair(**changes: str) -> str:
    """Return the file of a two-layer model with these changes; ``head`` goes before its class."""
    parts = USUAL_PAIR | changes
    ends = ", ".join(part for part in (parts["loss"], parts["optimizer"]) if part)
    source = PAIR.replace("INIT", parts["init"]).replace("BODY", parts["body"]).replace("ENDS", ends)
    for name in ("arguments", "inputs", "targets"):
        source = source.replace(name.upper(), parts[name])
    return parts["head"] + source


def in_a_line(loss: str, head: str = "", within: str = "") -> str:
    """Return the file of one linear layer with this loss, with lines before and inside its ``build``."""
    inner = f"    {within}\n" if within else ""
    return f"{head}\ndef build(n):\n{inner}    return nn.Linear(8, 4), torch.randn(n, 8), torch.randint(4, (n,)), {loss}\n"


TWO_HEADS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, images):
        maps = self.body(images)
        return {"classes": self.classes(maps).mean((2, 3)), "boxes": self.boxes(maps).mean((2, 3))}

def both(out, classes, boxes):
    return F.cross_entropy(out["classes"], classes) + F.smooth_l1_loss(out["boxes"], boxes)

def drawn(n):
    return torch.randn(n, 3, 8, 8), torch.randint(4, (n,)), torch.rand(n, 4)
"""

LIST_BY_SAMPLE = (
    TWO_HEADS
    + """
def loss(out, targets):
    assert len(targets) == len(out["boxes"])
    return both(out, torch.stack([t["class"] for t in targets]), torch.stack([t["box"] for t in targets]))

def build(n):
    images, classes, boxes = drawn(n)
    return Net(), images, [{"class": c, "box": b, "file": "a.png"} for c, b in zip(classes, boxes)], loss
"""
)

DICT = (
    TWO_HEADS
    + """
def build(n):
    images, classes, boxes = drawn(n)
    targets = {"classes": classes, "more": {"boxes": [boxes]}, "scale": 1.0}
    return Net(), images, targets, lambda out, t: both(out, t["classes"], t["more"]["boxes"][0]) * t["scale"]
"""
)

DATACLASS_AND_NAMED_TUPLE = (
    TWO_HEADS
    + """
class Boxes(typing.NamedTuple):
    boxes: torch.Tensor

@dataclasses.dataclass(frozen=True)
class Targets:
    classes: torch.Tensor
    held: Boxes

def build(n):
    images, classes, boxes = drawn(n)
    return Net(), images, Targets(classes, Boxes(boxes)), lambda out, t: both(out, t.classes, t.held.boxes)
"""
)

MOVES_ITSELF = (
    TWO_HEADS
    + """
class Encoding(UserDict):
    def to(self, device):
        self.data = {name: tensor.to(device) for name, tensor in self.data.items()}
        return self

def build(n):
    images, classes, boxes = drawn(n)
    targets = Encoding({"classes": classes, "boxes": boxes})
    return Net(), images, targets, lambda out, t: both(out, t["classes"], t["boxes"])
"""
)

NO_TARGETS = pair(
    arguments="x, labels",
    body="return {'loss': F.cross_entropy(self.second(self.first(x)), labels)}",
    inputs="(torch.randn(n, 8), torch.randint(4, (n,)))",
    targets="None",
    loss="lambda out, _: out['loss']",
)
NUMBER = pair(targets="0.5", loss="lambda out, goal: (out - goal).square().mean()")
CARRIED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
        self.state = None

    def forward(self, x):
        out, state = self.cell(x, self.state)
        self.state = tuple(each.detach() for each in state)
        return self.head(out[:, -1])

def build(n):
    return Net(), torch.randn(n, 5, 8), torch.randint(4, (n,)), nn.CrossEntropyLoss()
"""
VIEW = pair(
    init="self.first, self.second = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 4)",
    body="return self.second(self.first(x).relu().view(len(x), -1))",
    inputs="torch.randn(n, 3, 8, 8)",
)
BY_MODE = pair(
    init="self.first = nn.Sequential(self.first, nn.Dropout(0.5))",
    arguments="x, labels",
    body="""scores = self.second(self.first(x))
        if self.training:
            return {"scores": F.cross_entropy(scores, labels)}
        return [{"scores": each} for each in scores]""",
    inputs="(torch.randn(n, 8), torch.randint(4, (n,)))",
    loss="lambda losses, _: sum(losses.values())",
)
AUXILIARY_HEAD = pair(
    init="self.third = nn.Linear(16, 4)",
    body="""h = self.first(x).relu()
        return (self.second(h), self.third(h)) if self.training else self.second(h)""",
    loss="lambda out, y: F.cross_entropy(out[0], y) + 0.4 * F.cross_entropy(out[1], y)",
)
CLASS_WEIGHTS = in_a_line("LOSS", "LOSS = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 4.0, 9.0]))\n")
COMPLEX_WEIGHTS = pair(
    init="self.modes = nn.Parameter(torch.randn(3, dtype=torch.cfloat))",
    body="""h = self.second(self.first(x)).float()
        return torch.fft.irfft(torch.fft.rfft(h) * self.modes, n=4)""",
    targets="torch.randn(n, 4)",
    loss="nn.MSELoss()",
)

NOT_CUT = """
class Pairs:
    def __init__(self, classes):
        self.classes = tuple(classes.tolist())

def loss(out, pairs):
    assert len(pairs.classes) == len(out)
    return F.cross_entropy(out, torch.tensor(pairs.classes).to(out.device))

def build(n):
    return nn.Linear(8, 4), torch.randn(n, 8), Pairs(torch.randint(4, (n,))), loss
"""

NETWORK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        BODY

def build(n):
    return Net(), torch.randn(n, 64), torch.randint(4, (n,)), nn.CrossEntropyLoss()
"""
FUNCTIONAL_DROPOUT = NETWORK.replace("BODY", "return self.second(F.dropout(self.first(x).relu(), 0.5))")
NOISE = NETWORK.replace("BODY", "h = self.first(x); return self.second(h + torch.randn_like(h))")
LAYER_DROP = NETWORK.replace("BODY", "return self.second(self.first(x) if random.random() < 0.5 else x)")
OWN_GENERATOR = NETWORK.replace(
    "BODY",
    "h = self.first(x); return self.second(h + torch.from_numpy(self.draw.normal(size=h.shape)).to(h))",
).replace("self.first,", "self.draw = np.random.default_rng(0); self.first,")
OWN_RATE = NETWORK.replace(
    "BODY", "return self.second(F.dropout(self.first(x).relu(), self.dropout, self.training))"
).replace("self.first,", "self.dropout = 0.5; self.first,")

EARLY_EXIT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.exits = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

    def forward(self, x):
        outs = []
        for layer, head in zip(self.layers, self.exits):
            x = layer(x).relu()
            outs.append(head(x))
            if not self.training and outs[-1].softmax(-1).amax(-1).min() > 0.9:
                break
        return outs

def build(n):
    return Net(), torch.randn(n, 8), torch.randint(4, (n,)), lambda outs, y: sum(F.cross_entropy(o, y) for o in outs)
"""

CENTERS = """
class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(4, 6))

    def forward(self, out, y):
        return (out - self.centers[y]).square().mean()

def build(n):
    return nn.Linear(8, 6), torch.randn(n, 8), torch.randint(4, (n,)), Centers()
"""

PERCEPTUAL = """
class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)).eval().requires_grad_(False)

    def forward(self, out, y):
        assert not self.net.training
        return (self.net(out) - self.net(y)).square().mean()

def build(n):
    x = torch.randn(n, 8)
    return nn.Linear(8, 8), x, x, Perceptual()
"""

METHOD_OF_THE_MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("weight", torch.tensor([1.0, 1.0, 4.0, 9.0]))

    def forward(self, x):
        return self.layer(x)

    def loss(self, out, y):
        return F.cross_entropy(out, y, self.weight) + 0.01 * self.layer.weight.square().sum()

def build(n):
    net = Net()
    return net, torch.randn(n, 8), torch.randint(4, (n,)), net.loss
"""

DERIVATIVE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        u = self.net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return torch.cat([u, slope[:, :1]], 1)

def build(n):
    return Net(), torch.rand(n, 2), torch.ones(n, 2), nn.MSELoss()
"""

SPARSE_GRADIENTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.head = nn.Embedding(200, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.users(ids).mean(1))

def build(n):
    ids, labels = torch.randint(200, (n, 2)), torch.randint(4, (n,))
    return Net(), ids, labels, nn.CrossEntropyLoss(), functools.partial(torch.optim.SGD, lr=0.1)
"""

TWO_TABLES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(200, 16, sparse=True)
        self.films, self.head = nn.EmbeddingBag(100, 16, mode="sum", sparse=True), nn.Linear(16, 4)

    def forward(self, ids, seen):
        return self.head(self.users(ids).mean(1) + self.films(seen))

class Both:
    def __init__(self, net):
        tables = [*net.users.parameters(), *net.films.parameters()]
        self.optimizers = [torch.optim.SparseAdam(tables), torch.optim.Adam(net.head.parameters())]

    def zero_grad(self):
        for each in self.optimizers:
            each.zero_grad()

    def step(self):
        for each in self.optimizers:
            each.step()

def build(n):
    net = Net()
    ids, seen, labels = torch.randint(200, (n, 2)), torch.randint(100, (n, 3)), torch.randint(4, (n,))
    return net, (ids, seen), labels, nn.CrossEntropyLoss(), lambda _: Both(net)
"""
"""SparseAdam refuses gradients that are not sparse."""

LAZY = """
def build(n):
    net = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4))
    return net, torch.randn(n, 3, 8, 8), torch.randint(4, (n,)), nn.CrossEntropyLoss()
"""

SCRIPTED = """
def build(n):
    net = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    return net, torch.randn(n, 8), torch.randint(4, (n,)), nn.CrossEntropyLoss()
"""

OLD_WEIGHT_NORM = """
def build(n):
    net = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 4))
    net(torch.ones(n, 8))
    return net, torch.randn(n, 8), torch.randint(4, (n,)), nn.CrossEntropyLoss()
"""

NAMES_ITSELF = {
    "loss of the weights": pair(
        loss="lambda o, y: F.cross_entropy(o, y) + 1e-4 * sum(p.square().sum() for p in net.parameters())"
    ),
    "loss kept by the model": pair(
        body="h = self.first(x).relu(); self.extra = h.abs().mean(); return self.second(h)",
        loss="lambda o, y: F.cross_entropy(o, y) + net.extra",
    ),
    "gradient penalty": pair(
        loss="lambda o, y: F.cross_entropy(o, y) + torch.autograd.grad(net(torch.ones_like(o).repeat(1, 2)"
        ".requires_grad_()).sum(), net.first.weight, create_graph=True)[0].norm()"
    ),
    "hook": pair(
        init="self.seen = {}; self.first.register_forward_hook(lambda m, i, o: self.seen.update(h=o))",
        body="out = self.second(self.first(x).relu()); return out + 0 * self.seen['h'].mean()",
    ),
    "optimizer by part": pair(
        optimizer="lambda _: torch.optim.AdamW([{'params': net.first.parameters(), 'lr': 1e-4}, "
        "{'params': net.second.parameters()}], lr=1e-3)"
    ),
    "no copy": pair(init="self.lines = (line for line in 'abc')"),
}
"""Another object refers to the model; a copy would leave that object with the original."""
CARRIES = {
    "buffer bound anew": pair(
        init="self.register_buffer('mean', torch.zeros(16))",
        body="h = self.first(x).relu(); self.mean = 0.9 * self.mean + h.detach().mean(0); return self.second(h - self.mean)",
    ),
    "list": pair(
        init="self.means = [torch.zeros(())]",
        body="h = self.first(x).relu(); self.means.append(h.detach().mean()); return self.second(h - self.means[-2])",
    ),
}
ARGUMENTS = {
    "dict of inputs": pair(
        body="return self.second(self.first(x['a'] * x['scale']).relu())",
        inputs="{'a': torch.randn(n, 8), 'scale': 0.5}",
    ),
    "optional": pair(arguments="x, mask, scale", inputs="(torch.randn(n, 8), None, 0.5)"),
    "edges": pair(
        arguments="x, edges",
        body="h = self.first(x); return self.second(torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))",
        inputs="(torch.randn(n, 8), torch.randint(n, (2, 3 * n)))",
    ),
    "images of several sizes": pair(
        body="return self.second(self.first(torch.stack([image.mean((0, 1)) for image in x])).relu())",
        inputs="[torch.randn(5, 4 + i % 3, 8) for i in range(n)]",
    ),
    "list of arguments": pair(arguments="x, y", inputs="[torch.randn(n, 8), torch.randn(n, 8)]"),
    "by name": pair(
        arguments="x, mask=None, labels=None",
        body="""h = self.first(x) if mask is None else self.first(x * mask[:, None])
        out = self.second(h.relu())
        return UserDict(loss=F.cross_entropy(out, labels), logits=out)""",
        inputs="{'labels': torch.randint(4, (n,)), 'x': torch.randn(n, 8), 'mask': torch.ones(n)}",
        loss="lambda out, _: out['loss']",
    ),
    "images and targets": pair(
        arguments="x, targets",
        body="""x = torch.stack([image.mean((0, 1)) for image in x])
        return F.cross_entropy(self.second(self.first(x).relu()), torch.stack([y['class'] for y in targets]))""",
        inputs="([torch.randn(5, 4 + i % 3, 8) for i in range(n)], "
        "[{'class': torch.randint(4, ()), 'file': 'a.png'} for _ in range(n)])",
        targets="None",
        loss="lambda loss, _: loss",
    ),
    "names without arguments": pair(
        arguments="**batch",
        body="return self.second(self.first(batch['x'] * batch['scale']).relu())",
        inputs="{'x': torch.randn(n, 8), 'scale': 0.5}",
    ),
    "names beyond the arguments": pair(
        arguments="x, mask=None, **others",
        body="return self.second(self.first(x * others['scale']).relu())",
        inputs="{'x': torch.randn(n, 8), 'scale': 0.5}",
    ),
    "packed sequence": pair(
        init="self.lstm = nn.LSTM(8, 8)",
        body="return self.second(self.first(self.lstm(x)[1][0][-1]).relu())",
        inputs="nn.utils.rnn.pack_sequence([torch.randn(2 + i % 3, 8) for i in range(n)], enforce_sorted=False)",
    ),
    "moves its tensors": pair(
        head="""
class Data:
    def __init__(self, x, nodes):
        self.x, self.nodes = x, nodes

    def to(self, device):
        return Data(self.x.to(device), self.nodes.to(device))
""",
        body="h = self.first(x.x); return self.second(h.new_zeros(len(h) // 3, 16).index_add(0, x.nodes, h))",
        inputs="Data(torch.randn(3 * n, 8), torch.arange(n).repeat_interleave(3))",
    ),
    "nodes": pair(
        arguments="x, nodes",
        body="h = self.first(x); return self.second(h.new_zeros(len(h) // 3, 16).index_add(0, nodes, h))",
        inputs="(torch.randn(3 * n, 8), torch.arange(n).repeat_interleave(3))",
    ),
}
HOST_LENGTHS = {
    "padded and packed": pair(
        init="self.gru = nn.GRU(8, 8, batch_first=True)",
        arguments="x, sizes",
        body="""packed = nn.utils.rnn.pack_padded_sequence(x, sizes.cpu(), True, enforce_sorted=False)
        return self.second(self.first(self.gru(packed)[1][-1]).relu())""",
        inputs="(torch.randn(n, 5, 8), torch.randint(1, 6, (n,)))",
    ),
    "speech": pair(
        body="return self.second(self.first(x).relu()).log_softmax(-1).transpose(0, 1)",
        inputs="torch.randn(n, 6, 8)",
        targets="torch.randint(1, 4, (n, 2))",
        loss="lambda o, y: F.ctc_loss(o, y, torch.full((o.shape[1],), len(o)), torch.full((o.shape[1],), 2))",
    ),
    "matched on the host": pair(
        loss="lambda o, y: (o - o.detach()[torch.from_numpy(o.detach().float().cpu().numpy()[:, 0].argsort())]).abs().mean() "
        "+ F.cross_entropy(o[torch.arange(len(o))], y)"
    ),
}
OPTIMIZERS = {
    "not of torch": pair(
        head="""
class Plain:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p -= 0.01 * p.grad
""",
        optimizer="Plain",
    ),
    "fused by its author": pair(optimizer="lambda _: torch.optim.AdamW(net.parameters(), fused=True)"),
    "parameters alone": pair(
        head="""
class Clipped(torch.optim.AdamW):
    def step(self, closure=None):
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        return super().step(closure)
""",
        optimizer="lambda parameters: Clipped(parameters, lr=1e-2)",
    ),
    "with products": pair(
        head="""
class Orthogonal(torch.optim.SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.ndim == 2:
                p.grad = p.grad @ p.grad.T @ p.grad
        return super().step(closure)
""",
        optimizer="functools.partial(Orthogonal, lr=0.1)",
    ),
    "two in one": pair(
        head="""
class Both:
    def __init__(self, parameters):
        parts = [[], []]
        for p in parameters:
            parts[p.ndim == 1].append(p)
        self.optimizers = [torch.optim.SGD(parts[0], lr=0.1, momentum=0.9), torch.optim.AdamW(parts[1])]

    def zero_grad(self):
        for each in self.optimizers:
            each.zero_grad()

    def step(self):
        for each in self.optimizers:
            each.step()
""",
        optimizer="Both",
    ),
    "hooks": pair(
        head="""
def clipped(parameters):
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(parameters, 1.0) and None)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer
""",
        optimizer="clipped",
    ),
}
PLACES = {
    "device at the start": pair(
        head="DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n",
        init="self.mask = torch.ones(8, device=DEVICE)",
        body="x = x.to(DEVICE, torch.float32); return self.second(self.first(x * self.mask.to(DEVICE)).relu())",
    ).replace("net = Net()", "net = Net().to(DEVICE)"),
    "loss on a GPU": pair(
        head="LOSS = nn.CrossEntropyLoss(weight=torch.ones(4).cuda()).to('cuda')\n", loss="LOSS"
    ),
    "batch for a GPU": pair().replace("torch.randn(n, 8)", "torch.randn(n, 8).pin_memory()"),
    "data parallel": pair(init="self.first = nn.DataParallel(self.first)"),
}
ONE_MODEL = pair().replace("def build(n):\n    net = Net()", "net = Net()\n\ndef build(n):")
ONE_MODEL_BY_PART = (
    pair(optimizer="by_part")
    .replace("def build(n):\n    net = Net()", "net = Net()\n\ndef build(n):")
    .replace(
        "def build(n):",
        """def by_part(_):
    return torch.optim.AdamW([{"params": net.first.parameters()}, {"params": net.second.parameters(), "lr": 1e-2}])

def build(n):""",
    )
)
DEEP_BY_PART = pair(
    init="rates = [rate.item() for rate in torch.linspace(0, 0.1, 12)]\n"
    "        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate)) for rate in rates)",
    body="for block in self.blocks:\n            x = x + block(x)\n        return self.second(self.first(x).relu())",
    optimizer="lambda _: torch.optim.AdamW([{'params': [p for p in net.parameters() if p.ndim > 1]}, "
    "{'params': [p for p in net.parameters() if p.ndim == 1], 'weight_decay': 0.0}])",
)
"""Its constructor reads values, like those of many vision models; a shorter copy traces its equal blocks."""
COMMAND_LINE = pair(
    head="import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, default=16)\n"
    "WIDTH = parser.parse_args().width\n"
)
SPARSE_BUFFER = pair(
    init="self.register_buffer('links', torch.eye(8).to_sparse())",
    body="return self.second(self.first(torch.sparse.mm(self.links, x.T.float()).T).relu())",
)
TEACHER_IN_INFERENCE_MODE = pair(
    init="self.teacher = nn.Linear(8, 4)",
    body="with torch.inference_mode():\n            seen = self.teacher(x)\n"
    "        return self.second(self.first(x).relu()) + seen.clone()",
)
PROMOTED = pair(
    init="self.scale = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))",
    body="h = self.scale(self.first(x)); rows = torch.arange(len(h), device=h.device)\n"
    "        h = torch.zeros(h.shape, device=h.device).index_put((rows,), h, accumulate=True)\n"
    "        return self.second(torch.zeros_like(h).scatter_add(0, rows[:, None].expand_as(h), h.to(x.dtype)))",
)
"""A GPU's autocast casts both inputs of dot, index_put and scatter_add to the wider type."""
OWN_AUTOCAST = (
    pair(
        body="with torch.autocast(x.device.type, torch.bfloat16):\n"
        "            h = self.first(x).relu()\n"
        "        with torch.autocast(device_type=x.device.type, enabled=False):\n"
        "            return self.second(h.float())"
    )
    .replace("8, 16)", "8, 256)")
    .replace("(16", "(256")
)
INNER_LOOP = pair(
    body="weights = dict(self.first.named_parameters())\n"
    "        inner = lambda w: torch.func.functional_call(self.first, w, (x,)).square().mean()\n"
    "        grads = torch.func.grad(inner)(weights)\n"
    "        moved = {name: w - 0.1 * grads[name] for name, w in weights.items()}\n"
    "        return self.second(torch.func.functional_call(self.first, moved, (x,)).relu())"
)
COMPILED = pair(
    head="TRACED = []\n\ndef backend(graph, inputs):\n    TRACED.append(graph)\n    return graph.forward\n",
    init="self.first = torch.compile(self.first, backend=backend)",
)
ENCODER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 4)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(self, ids, mask):
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=mask).mean(1))

def build(n):
    ids = torch.randint(50, (n, 6))
    return Net(), (ids, torch.arange(6).expand(n, 6) > 4), torch.randint(4, (n,)), nn.CrossEntropyLoss()
"""
"""In eval mode torch makes a nested tensor of the unmasked tokens, for which it needs their values."""
MIXED_TYPES = pair(
    init="self.first = self.first.bfloat16().requires_grad_(False); "
    "self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(16, 2))",
    body="h = self.first(x.to(self.first.weight.dtype)); "
    "return self.second((h.float() + x.float() @ self.down.T @ self.up.T).relu())",
)
"""Adapters in float32 over a frozen base in bfloat16."""
GENERATES = pair(
    body="return self.second(self.first(x).relu()) if self.training else self.generate(x)",
).replace(
    "    def forward",
    """    @torch.inference_mode()
    def generate(self, x):
        for _ in range(5):
            scores = self.second(self.first(x).relu())
            x = x + scores.argmax(-1, keepdim=True)
        return scores

    def forward""",
)
COMPLEX_PRODUCT = pair(
    init="self.mix = nn.Parameter(torch.randn(16, 16, dtype=torch.cfloat))",
    body="h = self.first(x).float(); return self.second((h.to(torch.cfloat) @ self.mix).abs())",
)
EXPERTS = pair(
    init="self.experts = nn.Parameter(torch.randn(2, 16, 16))",
    body="h = self.first(x); half = len(h) // 2\n"
    "        ends = torch.tensor([half, len(h)], dtype=torch.int32, device=x.device)\n"
    "        h = torch._grouped_mm(h.to(self.experts.dtype), self.experts, offs=ends)\n"
    "        return self.second(h.to(x.dtype))",
)
"""The samples of each expert are adjacent, and one kernel multiplies those of all experts."""
FROZEN = pair(
    init="self.first = nn.Sequential(self.first, nn.BatchNorm1d(16)).eval().requires_grad_(False)",
    body="assert not self.first.training; return self.second(self.first(x).relu())",
)

NESTED = {
    "list by sample": LIST_BY_SAMPLE,
    "dict": DICT,
    "dataclass": DATACLASS_AND_NAMED_TUPLE,
    "moves itself": MOVES_ITSELF,
    "no targets": NO_TARGETS,
    "number": NUMBER,
    "not cut": NOT_CUT,
}
RANDOM = {
    "functional dropout": FUNCTIONAL_DROPOUT,
    "noise": NOISE,
    "layer drop": LAYER_DROP,
}
OTHERWISE_IN_INFERENCE = {"by mode": BY_MODE, "auxiliary head": AUXILIARY_HEAD, "early exit": EARLY_EXIT}

DISCRIMINATOR = """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        first, norm = nn.Conv2d(3, 8, 4, 2, 1), nn.utils.spectral_norm
        self.net = nn.Sequential(norm(first), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.weights = {"first": self.net[0].weight}

    def forward(self, made, real):
        return F.relu(1 - self.net(real)).mean() + F.relu(1 + self.net(made.detach())).mean() - self.net(made).mean()

def build(n):
    net = nn.Sequential(nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1))
    return net, torch.randn(n, 8, 1, 1), torch.randn(n, 3, 8, 8), Loss()
"""
"""The norms of torch.nn.utils keep the weight of a step as a plain attribute: a deep copy must not copy it."""

TEACHER = """
import copy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.student.parameters()):
                old.mul_(0.99).add_(new, alpha=0.01)
            seen = self.teacher(x)
        return self.student(x), seen

def build(n):
    return Net(), torch.randn(n, 3, 8, 8), None, lambda o, _: F.mse_loss(o[0], o[1] + 1)
"""

WITH_A_LOSS = {
    "class weights": CLASS_WEIGHTS,
    "centers": CENTERS,
    "perceptual": PERCEPTUAL,
    "method of the model": METHOD_OF_THE_MODEL,
    "discriminator": DISCRIMINATOR,
    "discriminator, old weight norm": DISCRIMINATOR.replace("spectral_norm", "weight_norm"),
}
KINDS = {
    **NESTED,
    **RANDOM,
    **OTHERWISE_IN_INFERENCE,
    **WITH_A_LOSS,
    "teacher": TEACHER,
    "own rate": OWN_RATE,
    "own generator": OWN_GENERATOR,
    "carried": CARRIED,
    "view": VIEW,
    "derivative": DERIVATIVE,
    "complex weights": COMPLEX_WEIGHTS,
    "sparse gradients": SPARSE_GRADIENTS,
    "two tables": TWO_TABLES,
    "lazy": LAZY,
    "scripted": SCRIPTED,
    "old weight norm": OLD_WEIGHT_NORM,
    **NAMES_ITSELF,
    **CARRIES,
    **ARGUMENTS,
    **HOST_LENGTHS,
    **OPTIMIZERS,
    **PLACES,
    "one model": ONE_MODEL,
    "one model, by part": ONE_MODEL_BY_PART,
    "compiled": COMPILED,
    "masked encoder": ENCODER,
    "lazy masked encoder": ENCODER.replace("nn.Linear(16, 4)", "nn.LazyLinear(4)"),
    "mixed types": MIXED_TYPES,
    "generates": GENERATES,
    "complex product": COMPLEX_PRODUCT,
    "inner loop": INNER_LOOP,
    "command line": COMMAND_LINE,
    "own autocast": OWN_AUTOCAST,
    "teacher in inference mode": TEACHER_IN_INFERENCE_MODE,
    "frozen": FROZEN,
    "sparse buffer": SPARSE_BUFFER,
    "sparse by row": SPARSE_BUFFER.replace(".to_sparse()", ".to_sparse_csr()"),
}

IN_A_GROUP = pair(
    body="h = self.first(x); mean = h.detach().mean(0); torch.distributed.all_reduce(mean)\n"
    "        return self.second(h - mean / torch.distributed.get_world_size())"
)
"""Its step needs a process group, as under torchrun."""

WEIGHTED = "lambda o, y: F.cross_entropy(o, y, weight)"
LOOSE = {
    "closure": in_a_line(WEIGHTED, within="weight = torch.ones(4)"),
    "name of the file": in_a_line(
        "loss",
        """
WEIGHT = torch.ones(4)

def loss(o, y):
    return F.cross_entropy(o, y, WEIGHT)
""",
    ),
    "default": in_a_line(WEIGHTED.replace("o, y:", "o, y, weight=torch.ones(4):")),
    "partial": in_a_line("functools.partial(F.cross_entropy, weight=torch.ones(4))"),
    "attribute": in_a_line(
        "Loss()",
        """
class Loss:
    def __init__(self):
        self.centers = [torch.zeros(4)]

    def __call__(self, o, y):
        return (o - self.centers[0]).square().mean()
""",
    ),
    "method": in_a_line(
        "Losses().of",
        """
class Losses:
    def __init__(self):
        self.centers = torch.zeros(4)

    def of(self, o, y):
        return (o - self.centers).square().mean()
""",
    ),
    "network": in_a_line("lambda o, y: F.cross_entropy(seen(o), y)", within="seen = nn.Linear(4, 4)"),
    "module": in_a_line(
        "Loss()",
        """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(4)

    def forward(self, o, y):
        return F.cross_entropy(o, y, self.weight)
""",
    ),
}
LOOSE |= {
    "cast target": LOOSE["closure"].replace("(o, y, weight)", "(o, y.to(torch.long), weight)"),
    "cast by name": LOOSE["closure"].replace("(o, y, weight)", "(o, y.to(dtype=torch.long), weight)"),
    "cast weight": LOOSE["closure"].replace("y, weight)", "y, weight.to(o.dtype))"),
    "moved target": LOOSE["default"].replace("(o, y, weight)", "(o, y.to(o.device), weight)"),
}
MOVED = {
    "default": LOOSE["default"].replace("(o, y, weight)", "(o, y, weight.to(o.device))"),
    "loop": LOOSE["attribute"].replace("self.centers[0])", "sum(c.type_as(o) for c in self.centers))"),
    "cast and moved": LOOSE["closure"].replace(
        "y, weight)", "y.to(torch.long), weight.to(o.device, torch.float))"
    ),
    "closure": LOOSE["closure"].replace("y, weight)", "y, weight.to(o.device))"),
    "attribute": LOOSE["attribute"].replace("self.centers[0])", "self.centers[0].to(o))"),
    "made there": LOOSE["closure"].replace(
        "y, weight)",
        "y, torch.tensor([1.0, 2.0, 2.0, 1.0], device=o.device) + o.new_tensor([1.0, 1.0, 1.0, 2.0]))",
    ),
    "indices from the host": LOOSE["closure"].replace("(o, y, weight)", "(o[:, weight.long()], y)"),
    "copied from the host": LOOSE["name of the file"].replace(
        "    return F.cross_entropy(o, y, WEIGHT)",
        "    weight = torch.zeros(4, device=o.device)\n    weight[:] = WEIGHT\n    return F.cross_entropy(o, y, weight)",
    ),
}

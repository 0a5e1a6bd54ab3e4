"""PyTorch's side of the benchmark of a whole TTT network: eager mode, autograd, each block checkpointed, AdamW.

usage: network.py THREADS STEPS

Written from the formulas, as the reference trains without kernels: attention segment by segment, and one Python loop over
mini-batches. A recomputed block keeps the graph of its inner loops, so nothing is computed a third time. Prints one JSON object: seconds of every step and the peak resident memory in GiB.
"""

import json
import math
import resource
import sys
import time

import torch
import torch.nn.functional as nnf
from torch import nn
from torch.utils.checkpoint import checkpoint
from ttt_layer import EPS, FRAMES, HEAD, PATCHES, SEGMENTS, SIDE, WIDTH, Ttt, angles, heads, rotated

threads, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
LAYERS, TEXT, TIME = 6, 64, 512
ALL_TEXT = SEGMENTS * TEXT


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.video = (nn.Parameter(torch.full((WIDTH,), 0.1)) for _ in range(2))

    def forward(self, x):
        return torch.cat([torch.tanh(self.text) * x[:, :ALL_TEXT], torch.tanh(self.video) * x[:, ALL_TEXT:]], 1)


def reversed_time(x):
    """Reverses the order of the segments' texts, and of all video tokens."""
    text = x[:, :ALL_TEXT].unflatten(1, (SEGMENTS, TEXT)).flip(1).flatten(1, 2)
    return torch.cat([text, x[:, ALL_TEXT:].flip(1)], 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.modulations = nn.ModuleList(nn.Linear(TIME, 6 * WIDTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=EPS) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q_norm, self.k_norm = (nn.LayerNorm(HEAD, eps=EPS) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))
        self.ttt = Ttt(TEXT)
        self.onward, self.back = Gates(), Gates()
        self.turns = angles(13)

    def attention(self, x):
        text = []
        video = torch.zeros_like(x[:, ALL_TEXT:])
        seen = torch.zeros(FRAMES * PATCHES, 1)
        for segment in range(SEGMENTS):
            of_video = slice(12 * segment * PATCHES, (12 * segment + 13) * PATCHES)
            own = x[:, segment * TEXT : (segment + 1) * TEXT]
            part = torch.cat([own, x[:, ALL_TEXT:][:, of_video]], 1)
            q = rotated(self.q_norm(heads(self.q(part))), self.turns)
            k = rotated(self.k_norm(heads(self.k(part))), self.turns)
            out = nnf.scaled_dot_product_attention(q, k, heads(self.v(part)))
            out = self.o(out.transpose(1, 2).flatten(2))
            text.append(out[:, :TEXT])
            video[:, of_video] += out[:, TEXT:]
            seen[of_video] += 1
        return torch.cat([*text, video / seen], 1)

    def mix(self, x):
        x = self.attention(x)
        x = x + self.onward(self.ttt(x))
        return x + self.back(reversed_time(self.ttt(reversed_time(x))))

    def forward(self, x, act):
        for modulation, norm, update in zip(self.modulations, self.norms, (self.mix, self.mlp), strict=True):
            shift_v, scale_v, gate_v, shift_t, scale_t, gate_t = modulation(act).unsqueeze(1).chunk(6, -1)
            normed = norm(x)
            text, video = normed[:, :ALL_TEXT], normed[:, ALL_TEXT:]
            inner = torch.cat([text * (1 + scale_t) + shift_t, video * (1 + scale_v) + shift_v], 1)
            change = update(inner)
            x = x + torch.cat([gate_t * change[:, :ALL_TEXT], gate_v * change[:, ALL_TEXT:]], 1)
        return x


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(16, WIDTH, 2, stride=2)
        self.text = nn.Linear(512, WIDTH)
        self.time = nn.Sequential(nn.Linear(WIDTH, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.last_norm = (nn.LayerNorm(WIDTH, eps=EPS) for _ in range(2))
        self.last_modulation = nn.Linear(TIME, 2 * WIDTH)
        self.last = nn.Linear(WIDTH, 64)

    def forward(self, latent, text, timestep):
        waves = timestep[:, None] * torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        act = nnf.silu(self.time(torch.cat([waves.cos(), waves.sin()], -1)))
        video = self.patch(latent.flatten(0, 1)).flatten(2).transpose(1, 2).unflatten(0, (len(latent), -1)).flatten(1, 2)
        x = torch.cat([self.text(text).flatten(1, 2), video], 1)
        for block in self.blocks:
            x = checkpoint(block, x, act, use_reentrant=False)
        shift, scale = self.last_modulation(act).unsqueeze(1).chunk(2, -1)
        out = self.last(self.last_norm(self.norm(x[:, ALL_TEXT:])) * (1 + scale) + shift)
        out = out.unflatten(-1, (16, 2, 2)).unflatten(1, (FRAMES, SIDE, SIDE))
        return out.permute(0, 1, 4, 2, 5, 3, 6).flatten(5, 6).flatten(3, 4)


model = Network()
parameters = sum(p.numel() for p in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=1e-4, foreach=True)
latent, text = torch.randn(1, FRAMES, 16, 2 * SIDE, 2 * SIDE), torch.randn(1, SEGMENTS, TEXT, 512)
seconds = []
for _ in range(steps):
    start = time.perf_counter()
    noise = torch.randn_like(latent)
    output = model(latent + noise, text, torch.randint(0, 1000, (1,)))
    (output - noise).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.perf_counter() - start)
peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"step_s": seconds, "peak_gib": peak_gib, "parameters": parameters}))

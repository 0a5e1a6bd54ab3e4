"""PyTorch's side of the benchmark of a whole TTT network: eager mode, autograd, each block checkpointed, AdamW.

usage: network.py THREADS STEPS

Written from the formulas, as the reference trains without kernels: attention segment by segment, and one Python loop over
mini-batches. A block that runs again keeps the graph of its inner loops, so that nothing runs a third time. Prints one JSON object: seconds of every step and the peak resident memory in GiB.
"""

import json
import math
import resource
import sys
import time

import torch
import torch.nn.functional as nnf
from inner_loop import EPS, mini_batch
from torch import nn
from torch.utils.checkpoint import checkpoint

threads, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
LAYERS, HEADS, HEAD, SEGMENTS, TEXT, BATCH, BASE_LR = 6, 8, 64, 3, 64, 64, 0.1
WIDTH, HIDDEN, TIME, FRAMES, SIDE = HEADS * HEAD, 4 * HEAD, 512, 12 * SEGMENTS + 1, 8
PATCHES = SIDE * SIDE
ALL_TEXT = SEGMENTS * TEXT


def angles(frames):
    """Returns the rotation of each token and pair: a quarter of a head turns with time, the rest with row and column."""
    sizes = [HEAD // 4, 3 * HEAD // 8, 3 * HEAD // 8]
    grids = torch.meshgrid(torch.arange(frames), torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    parts = [
        grid.reshape(-1, 1) * 10000.0 ** (-2 * torch.arange(size // 2) / size)
        for grid, size in zip(grids, sizes, strict=True)
    ]
    turned = torch.cat(parts, 1)
    return torch.polar(torch.ones_like(turned), turned)


def rotated(x, turns):
    """Rotates the last tokens of [B, N, L, H]: those before are text."""
    text = x.shape[2] - turns.shape[0]
    pairs = torch.view_as_complex(x[:, :, text:].unflatten(-1, (-1, 2)).contiguous())
    return torch.cat([x[:, :, :text], torch.view_as_real(pairs * turns).flatten(-2)], 2)


def heads(x):
    return x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)


# Where each token of [text, video] stands when segments take turns, and back.
ORDER = []
for segment in range(SEGMENTS):
    first = 0 if segment == 0 else 12 * segment + 1
    ORDER += range(segment * TEXT, (segment + 1) * TEXT)
    ORDER += range(ALL_TEXT + first * PATCHES, ALL_TEXT + (12 * segment + 13) * PATCHES)
ORDER = torch.tensor(ORDER)
BACK = ORDER.argsort()


class Ttt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.post_norm = nn.LayerNorm(WIDTH, eps=EPS)
        self.lr_weight = nn.Parameter(torch.randn(HEADS, 1, WIDTH) * 0.02)
        self.lr_bias = nn.Parameter(torch.zeros(HEADS, 1))
        self.gain = nn.Parameter(torch.ones(HEADS, HEAD))
        self.bias = nn.Parameter(torch.zeros(HEADS, HEAD))
        self.w1 = nn.Parameter(torch.randn(HEADS, HEAD, HIDDEN) * 0.02)
        self.b1 = nn.Parameter(torch.zeros(HEADS, 1, HIDDEN))
        self.w2 = nn.Parameter(torch.randn(HEADS, HIDDEN, HEAD) * 0.02)
        self.b2 = nn.Parameter(torch.zeros(HEADS, 1, HEAD))
        self.turns = angles(FRAMES)

    def forward(self, x):
        gain, bias = self.gain.unsqueeze(1), self.bias.unsqueeze(1)
        q, k = (rotated(nnf.normalize(heads(w(x)), dim=-1), self.turns) for w in (self.wq, self.wk))
        apart = heads(self.wv(x)) - k
        target = gain * (apart - apart.mean(-1, keepdim=True)) / (apart.std(-1, keepdim=True) + 1e-8) + bias
        eta = BASE_LR / (HEAD * BATCH) * torch.sigmoid(
            torch.einsum("bld,nd->bnl", x, self.lr_weight.squeeze(1)) + self.lr_bias
        ).unsqueeze(-1)
        # Taken apart at once: the gradient of a slice would be as large as the whole, for each mini-batch.
        parts = [each[:, :, ORDER].unflatten(2, (-1, BATCH)).unbind(2) for each in (q, k, target, eta)]
        w1, b1, w2, b2 = self.w1, self.b1, self.w2, self.b2
        outs = []
        for qi, ki, target_i, eta_i in zip(*parts, strict=True):
            out, w1, b1, w2, b2 = mini_batch(qi, ki, target_i, eta_i, gain, bias, w1, b1, w2, b2)
            outs.append(out)
        out = torch.cat(outs, 2).transpose(1, 2).flatten(2)
        return self.wo(self.post_norm(out))[:, BACK]


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.video = (nn.Parameter(torch.full((WIDTH,), 0.1)) for _ in range(2))

    def forward(self, x):
        return torch.cat([torch.tanh(self.text) * x[:, :ALL_TEXT], torch.tanh(self.video) * x[:, ALL_TEXT:]], 1)


def backwards(x):
    """Turns the order of the segments' texts, and of all video tokens."""
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
        self.ttt = Ttt()
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
        return x + self.back(backwards(self.ttt(backwards(x))))

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

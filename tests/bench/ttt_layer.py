"""A TTT-MLP layer in PyTorch, written from the formulas: one Python loop over mini-batches. Both TTT benchmarks use it."""

import torch
import torch.nn.functional as nnf
from torch import nn
from torch.utils.checkpoint import checkpoint

HEADS, HEAD, SEGMENTS, BATCH, BASE_LR, EPS = 8, 64, 3, 64, 0.1, 1e-6
WIDTH, HIDDEN, FRAMES, SIDE = HEADS * HEAD, 4 * HEAD, 12 * SEGMENTS + 1, 8
PATCHES = SIDE * SIDE


def angles(frames):
    """Returns the rotation of each token and channel pair: a quarter of a head rotates with time, the rest with row and column."""
    sizes = [HEAD // 4, 3 * HEAD // 8, 3 * HEAD // 8]
    grids = torch.meshgrid(torch.arange(frames), torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    parts = [
        grid.reshape(-1, 1) * 10000.0 ** (-2 * torch.arange(size // 2) / size)
        for grid, size in zip(grids, sizes, strict=True)
    ]
    turned = torch.cat(parts, 1)
    return torch.polar(torch.ones_like(turned), turned)


def rotated(x, turns):
    """Rotates the video tokens of [B, N, L, H], which follow the text tokens."""
    text = x.shape[2] - turns.shape[0]
    pairs = torch.view_as_complex(x[:, :, text:].unflatten(-1, (-1, 2)).contiguous())
    return torch.cat([x[:, :, :text], torch.view_as_real(pairs * turns).flatten(-2)], 2)


def heads(x):
    return x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)


def scan_order(text):
    """Returns the scan order: for each segment, the indices of its `text` text tokens and of its video tokens in [text, video]."""
    order = []
    for segment in range(SEGMENTS):
        first = 0 if segment == 0 else 12 * segment + 1
        order += range(segment * text, (segment + 1) * text)
        order += range(SEGMENTS * text + first * PATCHES, SEGMENTS * text + (12 * segment + 13) * PATCHES)
    return torch.tensor(order)


def gelu_slope(z):
    t = torch.tanh(0.79788456 * z * (1 + 0.044715 * z * z))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * (0.79788456 + 0.1070322243 * z * z)


def normalized(z):
    deviation = (z.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()
    return (z - z.mean(-1, keepdim=True)) / deviation, deviation


def mini_batch(q, k, target, eta, gamma, beta, w1, b1, w2, b2):
    z1 = k @ w1 + b1
    x = nnf.gelu(z1, approximate="tanh")
    hat, deviation = normalized(x @ w2 + b2)
    g = (gamma * hat + beta - target) * gamma
    g2 = (g - g.mean(-1, keepdim=True) - hat * (g * hat).mean(-1, keepdim=True)) / deviation
    g1 = (g2 @ w2.transpose(-1, -2)) * gelu_slope(z1)
    w1 = w1 - (eta * k).transpose(-1, -2) @ g1
    b1 = b1 - (eta * g1).sum(-2, keepdim=True)
    w2 = w2 - (eta * x).transpose(-1, -2) @ g2
    b2 = b2 - (eta * g2).sum(-2, keepdim=True)
    hat, _ = normalized(nnf.gelu(q @ w1 + b1, approximate="tanh") @ w2 + b2)
    return q + gamma * hat + beta, w1, b1, w2, b2


def scan(q, k, target, eta, gamma, beta, *state):
    """Scans mini-batches [B, N, C, T, H]; returns their outputs and the state after them."""
    outs = []
    # Unbind once: otherwise the gradient of each slice would be as large as the whole tensor.
    for each in zip(*(whole.unbind(2) for whole in (q, k, target, eta)), strict=True):
        out, *state = mini_batch(*each, gamma, beta, *state)
        outs.append(out)
    return torch.cat(outs, 2), *state


class Ttt(nn.Module):
    """The layer, for segments of `text` text tokens. If `group` is set, the backward pass recomputes groups of that many mini-batches."""

    def __init__(self, text, group=None):
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
        self.turns, self.order, self.group = angles(FRAMES), scan_order(text), group
        self.back = self.order.argsort()

    def forward(self, x):
        gain, bias = self.gain.unsqueeze(1), self.bias.unsqueeze(1)
        q, k = (rotated(nnf.normalize(heads(w(x)), dim=-1), self.turns) for w in (self.wq, self.wk))
        apart = heads(self.wv(x)) - k
        target = gain * (apart - apart.mean(-1, keepdim=True)) / (apart.std(-1, keepdim=True) + 1e-8) + bias
        eta = BASE_LR / (HEAD * BATCH) * torch.sigmoid(
            torch.einsum("bld,nd->bnl", x, self.lr_weight.squeeze(1)) + self.lr_bias
        ).unsqueeze(-1)
        batches = [each[:, :, self.order].unflatten(2, (-1, BATCH)) for each in (q, k, target, eta)]
        state, outs = [self.w1, self.b1, self.w2, self.b2], []
        for part in zip(*(each.split(self.group or each.shape[2], 2) for each in batches), strict=True):
            if self.group:
                out, *state = checkpoint(scan, *part, gain, bias, *state, use_reentrant=False)
            else:
                out, *state = scan(*part, gain, bias, *state)
            outs.append(out)
        out = torch.cat(outs, 2).transpose(1, 2).flatten(2)
        return self.wo(self.post_norm(out))[:, self.back]

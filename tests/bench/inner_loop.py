"""The inner loop of TTT-MLP layers in PyTorch, written from the formulas: what both of the TTT benchmarks walk through."""

import torch
import torch.nn.functional as nnf

EPS = 1e-6


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

"""The networks of the benchmarks: diffusers' CogVideoX transformer for 13 latent frames, in two sizes. train.py, lora.py and sample.py
measure the small one, with 8 blocks of width 512 and 51.8 million parameters, for frames of 16 x 24 and texts of 64 tokens."""

from diffusers import CogVideoXTransformer3DModel
from diffusers.models.embeddings import get_3d_rotary_pos_embed

# Heads, rows and columns of the latent, and length and width of the text.
SIZES = {"52m": (8, (16, 24), (64, 512)), "5b": (48, (60, 90), (226, 4096))}


def latent_shape(size="52m"):
    return (1, 13, 16, *SIZES[size][1])


def text_shape(size="52m"):
    return (1, *SIZES[size][2])


LATENT, TEXT = latent_shape(), text_shape()


def network(size="52m", layers=8):
    heads, (rows, columns), (text_len, text_dim) = SIZES[size]
    return CogVideoXTransformer3DModel(
        num_attention_heads=heads,
        attention_head_dim=64,
        in_channels=16,
        out_channels=16,
        time_embed_dim=512,
        text_embed_dim=text_dim,
        num_layers=layers,
        sample_width=columns,
        sample_height=rows,
        sample_frames=49,
        max_text_seq_length=text_len,
        use_rotary_positional_embeddings=True,
    )


def rotary(size="52m"):
    rows, columns = SIZES[size][1]
    grid = (rows // 2, columns // 2)
    return get_3d_rotary_pos_embed(64, ((0, 0), grid), grid, 13)

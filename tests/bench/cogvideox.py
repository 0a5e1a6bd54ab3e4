"""The network that train.py, lora.py and sample.py measure: diffusers' CogVideoX transformer with 8 blocks of width 512 and 51.8
million parameters, for 13 latent frames of 16 x 24 and texts of 64 tokens."""

from diffusers import CogVideoXTransformer3DModel
from diffusers.models.embeddings import get_3d_rotary_pos_embed

LATENT, TEXT = (1, 13, 16, 16, 24), (1, 64, 512)


def network():
    return CogVideoXTransformer3DModel(
        num_attention_heads=8,
        attention_head_dim=64,
        in_channels=16,
        out_channels=16,
        time_embed_dim=512,
        text_embed_dim=512,
        num_layers=8,
        sample_width=24,
        sample_height=16,
        sample_frames=49,
        max_text_seq_length=64,
        use_rotary_positional_embeddings=True,
    )


def rotary():
    return get_3d_rotary_pos_embed(64, ((0, 0), (8, 12)), (8, 12), 13)

"""Rules that map the names in published files to those of the built-in models
(``names.py``).

The files have the format of the library transformers. Files with a head have a prefix
such as ``bert.``.
"""

from collections.abc import Mapping, Sequence

Rules = Mapping[str, str | Sequence[str]]

_ENCODER = "**.encoder.layer.*"

BERT: Rules = {
    f"{_ENCODER}.attention.self.query.*": r"block\2+1.attention.qkv.\3",
    f"{_ENCODER}.attention.self.key.*": r"block\2+1.attention.qkv.\3",
    f"{_ENCODER}.attention.self.value.*": r"block\2+1.attention.qkv.\3",
    f"{_ENCODER}.attention.output.dense.*": r"block\2+1.attention.out.\3",
    # Norms in files converted from TensorFlow have gamma and beta.
    f"{_ENCODER}.attention.output.LayerNorm.gamma": r"block\2+1.norm1.weight",
    f"{_ENCODER}.attention.output.LayerNorm.beta": r"block\2+1.norm1.bias",
    f"{_ENCODER}.attention.output.LayerNorm.*": r"block\2+1.norm1.\3",
    f"{_ENCODER}.intermediate.dense.*": r"block\2+1.linear1.\3",
    f"{_ENCODER}.output.dense.*": r"block\2+1.linear2.\3",
    f"{_ENCODER}.output.LayerNorm.gamma": r"block\2+1.norm2.weight",
    f"{_ENCODER}.output.LayerNorm.beta": r"block\2+1.norm2.bias",
    f"{_ENCODER}.output.LayerNorm.*": r"block\2+1.norm2.\3",
    "**.embeddings.LayerNorm.gamma": "embeddings.LayerNorm.weight",
    "**.embeddings.LayerNorm.beta": "embeddings.LayerNorm.bias",
    "**.embeddings.*.*": r"embeddings.\2.\3",
    "**.pooler.dense.*": r"pooler.dense.\2",
}

_DECODER = "**.h.*"

GPT2: Rules = {  # the published layers have matrices [in, out]
    f"{_DECODER}.ln_1.*": r"block\2+1.norm1.\3",
    f"{_DECODER}.ln_2.*": r"block\2+1.norm2.\3",
    f"{_DECODER}.attn.c_attn.weight": r"transposed block\2+1.attention.qkv.weight",
    f"{_DECODER}.attn.c_attn.bias": r"block\2+1.attention.qkv.bias",
    f"{_DECODER}.attn.c_proj.weight": r"transposed block\2+1.attention.out.weight",
    f"{_DECODER}.attn.c_proj.bias": r"block\2+1.attention.out.bias",
    f"{_DECODER}.mlp.c_fc.weight": r"transposed block\2+1.linear1.weight",
    f"{_DECODER}.mlp.c_fc.bias": r"block\2+1.linear1.bias",
    f"{_DECODER}.mlp.c_proj.weight": r"transposed block\2+1.linear2.weight",
    f"{_DECODER}.mlp.c_proj.bias": r"block\2+1.linear2.bias",
    "transformer.**": r"\1",
}

VIT: Rules = {
    "**.embeddings.cls_token": "reshaped positions.token",
    "**.embeddings.position_embeddings": "reshaped positions.position",
    # The published layer is a convolution with a stride equal to its kernel size.
    "**.embeddings.patch_embeddings.projection.*": r"reshaped patches.linear.\2",
    f"{_ENCODER}.layernorm_before.*": r"block\2+1.norm1.\3",
    f"{_ENCODER}.attention.attention.query.*": r"block\2+1.attention.qkv.\3",
    f"{_ENCODER}.attention.attention.key.*": r"block\2+1.attention.qkv.\3",
    f"{_ENCODER}.attention.attention.value.*": r"block\2+1.attention.qkv.\3",
    f"{_ENCODER}.attention.output.dense.*": r"block\2+1.attention.out.\3",
    f"{_ENCODER}.layernorm_after.*": r"block\2+1.norm2.\3",
    f"{_ENCODER}.intermediate.dense.*": r"block\2+1.linear1.\3",
    f"{_ENCODER}.output.dense.*": r"block\2+1.linear2.\3",
    "**.layernorm.*": r"norm.\2",
}

# Rules by the value of ``adapter.names``.
PUBLISHED: dict[str, Rules] = {
    "bert": BERT,
    "gpt2": GPT2,
    "roberta": BERT,  # the prefix differs
    "vit": VIT,
}

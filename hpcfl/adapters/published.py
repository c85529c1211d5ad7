"""Rules from the names in published files to those of the built-in models (see
``names.py``).

The library transformers writes these files. A prefix such as ``bert.`` is present in
files with a head.
"""

from collections.abc import Mapping, Sequence

Rules = Mapping[str, str | Sequence[str]]

_ENCODER = r"(?:\w+\.)?encoder\.layer\.(\d+)\."
_EMBEDDINGS = r"(?:\w+\.)?embeddings\."
# Norms in files converted from TensorFlow have gamma and beta.
_WEIGHT = r"\.(?:weight|gamma)"
_BIAS = r"\.(?:bias|beta)"

BERT: Rules = {
    rf"{_ENCODER}attention\.self\.query\.(.*)": r"block\1+1.attention.qkv.\2",
    rf"{_ENCODER}attention\.self\.key\.(.*)": r"block\1+1.attention.qkv.\2",
    rf"{_ENCODER}attention\.self\.value\.(.*)": r"block\1+1.attention.qkv.\2",
    rf"{_ENCODER}attention\.output\.dense\.(.*)": r"block\1+1.attention.out.\2",
    rf"{_ENCODER}attention\.output\.LayerNorm{_WEIGHT}": r"block\1+1.norm1.weight",
    rf"{_ENCODER}attention\.output\.LayerNorm{_BIAS}": r"block\1+1.norm1.bias",
    rf"{_ENCODER}intermediate\.dense\.(.*)": r"block\1+1.linear1.\2",
    rf"{_ENCODER}output\.dense\.(.*)": r"block\1+1.linear2.\2",
    rf"{_ENCODER}output\.LayerNorm{_WEIGHT}": r"block\1+1.norm2.weight",
    rf"{_ENCODER}output\.LayerNorm{_BIAS}": r"block\1+1.norm2.bias",
    rf"{_EMBEDDINGS}LayerNorm{_WEIGHT}": "embeddings.LayerNorm.weight",
    rf"{_EMBEDDINGS}LayerNorm{_BIAS}": "embeddings.LayerNorm.bias",
    rf"{_EMBEDDINGS}(\w+_embeddings\.weight)": r"embeddings.\1",
    r"(?:\w+\.)?pooler\.dense\.(.*)": r"pooler.dense.\1",
}

_DECODER = r"(?:transformer\.)?h\.(\d+)\."

GPT2: Rules = {  # its layers have a class of their own, with matrices [in, out]
    rf"{_DECODER}ln_([12])\.(.*)": r"block\1+1.norm\2.\3",
    rf"{_DECODER}attn\.c_attn\.weight": r"transposed block\1+1.attention.qkv.weight",
    rf"{_DECODER}attn\.c_attn\.bias": r"block\1+1.attention.qkv.bias",
    rf"{_DECODER}attn\.c_proj\.weight": r"transposed block\1+1.attention.out.weight",
    rf"{_DECODER}attn\.c_proj\.bias": r"block\1+1.attention.out.bias",
    rf"{_DECODER}mlp\.c_fc\.weight": r"transposed block\1+1.linear1.weight",
    rf"{_DECODER}mlp\.c_fc\.bias": r"block\1+1.linear1.bias",
    rf"{_DECODER}mlp\.c_proj\.weight": r"transposed block\1+1.linear2.weight",
    rf"{_DECODER}mlp\.c_proj\.bias": r"block\1+1.linear2.bias",
    r"transformer\.(.*)": r"\1",
}

VIT: Rules = {
    rf"{_EMBEDDINGS}cls_token": "reshaped positions.token",
    rf"{_EMBEDDINGS}position_embeddings": "reshaped positions.position",
    # a convolution with a stride equal to its kernel size
    rf"{_EMBEDDINGS}patch_embeddings\.projection\.(.*)": r"reshaped patches.linear.\1",
    rf"{_ENCODER}layernorm_before\.(.*)": r"block\1+1.norm1.\2",
    rf"{_ENCODER}attention\.attention\.query\.(.*)": r"block\1+1.attention.qkv.\2",
    rf"{_ENCODER}attention\.attention\.key\.(.*)": r"block\1+1.attention.qkv.\2",
    rf"{_ENCODER}attention\.attention\.value\.(.*)": r"block\1+1.attention.qkv.\2",
    rf"{_ENCODER}attention\.output\.dense\.(.*)": r"block\1+1.attention.out.\2",
    rf"{_ENCODER}layernorm_after\.(.*)": r"block\1+1.norm2.\2",
    rf"{_ENCODER}intermediate\.dense\.(.*)": r"block\1+1.linear1.\2",
    rf"{_ENCODER}output\.dense\.(.*)": r"block\1+1.linear2.\2",
    r"(?:\w+\.)?layernorm\.(.*)": r"norm.\1",
}

# by the value of ``adapter.names``
PUBLISHED: dict[str, Rules] = {
    "bert": BERT,
    "gpt2": GPT2,
    "roberta": BERT,  # the prefix differs
    "vit": VIT,
}

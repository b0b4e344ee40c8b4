"""The benchmarks' Qwen3 model as a GGUF file without a vocabulary, for llama.cpp.

python bench/gguf_model.py OUT.gguf
"""

from __future__ import annotations

import argparse
import json

import common
import gguf
import torch
from safetensors import safe_open


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", choices=common.SHAPES)
    parser.add_argument("--dtype", default=common.fast_dtype(), choices=("float32", "bfloat16"), help="default: %(default)s")
    parser.add_argument("out")
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(args.out, "qwen3")
    writer.add_name(args.model)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if args.dtype == "bfloat16" else gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(common.SHAPES[args.model]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a dict)
            tensor = tensors.get_tensor(name)
            new = names.get_name(name, try_suffixes=(".weight",))
            if tensor.dim() == 1 or args.dtype == "float32":
                writer.add_tensor(new, tensor.float().numpy())
            else:
                raw = tensor.contiguous().view(torch.uint8).numpy()
                writer.add_tensor(new, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Resident decoding beside llama.cpp's CPU backend, on the same Mixtral checkpoint in BF16, in turns.

    llama_bench.py convert CHECKPOINT FILE.gguf       (needs the Python packages gguf and numpy)
    llama_bench.py run --pack PACK --gguf FILE.gguf --llama-bench PROGRAM [--od DIR]

Each round reads memory (od-bench gemv), and decodes with llama.cpp and with od-main, plain and as planes. Printed are medians
of tokens a second, of the ratio to llama.cpp within a round, and of the bytes of weights that a token reads over what
memory gave in that round. A token reads every dense matrix but the embedding, and top-k experts of each layer; planes count
as the BF16 that they stand for."""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys


def read_tensors(folder):
    """Name -> (dtype, shape, bytes), of all weight files."""
    out = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(folder, name)
        with open(path, "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(size))
        for key, t in header.items():
            if key != "__metadata__":
                begin, end = t["data_offsets"]
                out[key] = (path, 8 + size + begin, end - begin, t["shape"], t["dtype"])
    return out


def convert(args):
    import gguf
    import numpy as np

    config = json.load(open(os.path.join(args.checkpoint, "config.json")))
    tensors = read_tensors(args.checkpoint)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    experts, layers = config["num_local_experts"], config["num_hidden_layers"]

    def load(name):
        path, at, size, shape, dtype = tensors[name]
        if dtype != "BF16":
            sys.exit(f"{name}: expected BF16, found {dtype}")
        return np.fromfile(path, np.uint16, size // 2, offset=at).reshape(shape)

    def turned(w, n):  # llama.cpp turns neighbours, the checkpoint halves
        return w.reshape(n, 2, w.shape[0] // n // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    out = gguf.GGUFWriter(args.gguf, "llama")
    out.add_block_count(layers)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_rope_dimension_count(config["head_dim"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_expert_count(experts)
    out.add_expert_used_count(config["num_experts_per_tok"])
    out.add_vocab_size(config["vocab_size"])
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    out.add_tokenizer_model("no_vocab")

    def put(name, w):
        out.add_tensor(name, np.ascontiguousarray(w).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def put_f32(name, w):
        out.add_tensor(name, (w.astype(np.uint32) << 16).view(np.float32))

    put("token_embd.weight", load("model.embed_tokens.weight"))
    put_f32("output_norm.weight", load("model.norm.weight"))
    put("output.weight", load("lm_head.weight"))
    for i in range(layers):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        put_f32(gg + "attn_norm.weight", load(hf + "input_layernorm.weight"))
        put_f32(gg + "ffn_norm.weight", load(hf + "post_attention_layernorm.weight"))
        put(gg + "attn_q.weight", turned(load(hf + "self_attn.q_proj.weight"), heads))
        put(gg + "attn_k.weight", turned(load(hf + "self_attn.k_proj.weight"), kv_heads))
        put(gg + "attn_v.weight", load(hf + "self_attn.v_proj.weight"))
        put(gg + "attn_output.weight", load(hf + "self_attn.o_proj.weight"))
        put_f32(gg + "ffn_gate_inp.weight", load(hf + "block_sparse_moe.gate.weight"))
        for gguf_name, name in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
            put(gg + f"ffn_{gguf_name}_exps.weight",
                np.stack([load(hf + f"block_sparse_moe.experts.{e}.{name}.weight") for e in range(experts)]))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def bytes_of_a_token(config):
    head, hidden = config["head_dim"], config["hidden_size"]
    attention = 2 * (config["num_attention_heads"] + config["num_key_value_heads"]) * head * hidden
    experts = 3 * config["num_experts_per_tok"] * config["intermediate_size"] * hidden
    router = config["num_local_experts"] * hidden
    return 2 * (config["num_hidden_layers"] * (attention + experts + router) + config["vocab_size"] * hidden)


def run(args):
    weights = bytes_of_a_token(json.load(open(os.path.join(args.pack, "config.json"))))
    tool = lambda name: os.path.join(args.od, name)
    forms = [(p, f) for p in ("f32", "bf16") for f in ("bf16", "planes")]
    rates = {k: [] for k in ["membw", "llama.cpp"] + forms}
    for _ in range(args.rounds):
        read = json.loads(output_of([tool("od-bench"), "gemv", "--seconds", "0.2", "--threads", str(args.threads), "--json"]))
        rates["membw"].append(statistics.median(r["membw_gbps"] for r in read["gemv"] if r["threads"] == args.threads))
        llama = json.loads(output_of([args.llama_bench, "-m", args.gguf, "-t", str(args.threads), "-p", "0", "-n",
                                      str(args.tokens), "-r", "1", "-o", "json"]))
        rates["llama.cpp"].append(llama[0]["avg_ts"])
        for profile, form in forms:
            said = output_of([tool("od-main"), "--resident", "--resident-form", form, "--pack", args.pack, "--profile", profile,
                              "--threads", str(args.threads), "--prompt", "a", "--temperature", "0", "--max-tokens",
                              str(args.tokens), "--ignore-eos", "--json"])
            rates[(profile, form)].append(json.loads(said.splitlines()[-1])["tok_per_s"])
    print(f"{args.threads} threads, {args.rounds} rounds, {weights / 1e6:.0f} MB a token, "
          f"memory {statistics.median(rates['membw']):.1f} GB/s")
    for key in ["llama.cpp"] + forms:
        ratio = [a / b for a, b in zip(rates[key], rates["llama.cpp"])]
        share = [a * weights / 1e9 / b for a, b in zip(rates[key], rates["membw"])]
        name = key if isinstance(key, str) else f"{key[0]}, {'plain' if key[1] == 'bf16' else key[1]}"
        print(f"{name:14} {statistics.median(rates[key]):7.2f} tok/s   x llama.cpp {statistics.median(ratio):.3f} "
              f"({min(ratio):.3f} to {max(ratio):.3f})   x memory {statistics.median(share):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("convert")
    p.add_argument("checkpoint")
    p.add_argument("gguf")
    p = commands.add_parser("run")
    p.add_argument("--pack", required=True)
    p.add_argument("--gguf", required=True)
    p.add_argument("--llama-bench", default="llama-bench")
    p.add_argument("--od", default="build/bin", help="folder of od-main and od-bench")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    convert(args) if args.command == "convert" else run(args)


if __name__ == "__main__":
    main()

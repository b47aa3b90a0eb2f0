#!/usr/bin/env python3
"""Resident decoding beside llama.cpp's CPU backend, on the same Mixtral checkpoint in BF16, in turns.

    llama_bench.py convert CHECKPOINT FILE.gguf       (needs the Python packages gguf and numpy)
    llama_bench.py run --pack PACK --gguf FILE.gguf --llama-bench PROGRAM [--od DIR]
    llama_bench.py types --config CHECKPOINT/config.json --llama-bench PROGRAM [--od DIR]

Each round reads memory (od-bench gemv), and decodes with llama.cpp and with od-main, plain and as planes. Printed are medians
of tokens a second, of the ratio to llama.cpp within a round, and of the bytes of weights that a token reads over what
memory gave in that round. A token reads every dense matrix but the embedding, and top-k experts of each layer; planes count
as the BF16 that they stand for.

types writes a GGUF file of the configuration's shape for each format of blocks, whose matrices all have it (values do not
matter to the speed: blocks of tests/golden/formats are repeated), and decodes with it, with the same in BF16, and with llama.cpp,
in turns. Printed are medians of tokens a second, of the ratio to BF16 and to llama.cpp on the same file within a round."""
import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "integ"))
import gguf_blocks as gb
import gguf_checkpoint as gg


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


def put_tokens(out, checkpoint, n):
    """The tokens of od-bench synth, which have no merges. llama.cpp wants one: of two tokens that no text here has side by side."""
    with open(os.path.join(checkpoint, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    token = {i: s for s, i in tokenizer["model"]["vocab"].items()}
    special = {a["id"]: a["content"] for a in tokenizer["added_tokens"]}
    token.update(special)
    token[n - 1] = "qz"
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([token.get(i, f"<unused{i}>") for i in range(n)])
    out.add_token_types([3 if i in special else 1 for i in range(n)])  # control tokens, and others
    out.add_token_merges(["q z"])


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
    put_tokens(out, args.checkpoint, config["vocab_size"])

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


def file_of(kind, config, path):
    """A GGUF file of the configuration's shape; all matrices but the router's are of this kind."""
    hidden, head, wide = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    queries, keys, experts = config["num_attention_heads"] * head, config["num_key_value_heads"] * head, config["num_local_experts"]
    _, weights, each = gg.TYPES[kind]
    unit = b"".join(b for b, _ in gb.blocks(kind)) if weights > 1 else struct.pack("<1024H", *(0x3c00 + i % 128 for i in range(1024)))
    tensors = []

    def put(name, n_in, n_out, n=1):
        size = n_in // weights * each * n_out * n
        tensors.append((name, kind, [n_in, n_out, n][:2 + (n > 1)], (unit * (size // len(unit) + 1))[:size]))

    def put_f32(name, *shape):
        tensors.append((name, "F32", list(shape), struct.pack("<f", 0.5) * math.prod(shape)))

    put("token_embd.weight", hidden, config["vocab_size"])
    put("output.weight", hidden, config["vocab_size"])
    put_f32("output_norm.weight", hidden)
    for i in range(config["num_hidden_layers"]):
        blk = "blk.%d." % i
        for name, n_in, n_out in ("attn_q", hidden, queries), ("attn_k", hidden, keys), ("attn_v", hidden, keys), ("attn_output", queries, hidden):
            put(blk + name + ".weight", n_in, n_out)
        for name in "attn_norm", "ffn_norm":
            put_f32(blk + name + ".weight", hidden)
        put_f32(blk + "ffn_gate_inp.weight", hidden, experts)
        for name, n_in, n_out in ("gate", hidden, wide), ("up", hidden, wide), ("down", wide, hidden):
            put(blk + "ffn_%s_exps.weight" % name, n_in, n_out, experts)
    kv = gg.Keys(config, []).kv
    kv["tokenizer.ggml.model"] = (gg.STRING, "no_vocab")
    gg.write_file(path, kv, tensors)


def decode_rate(args, file, threads, cpu):
    said = output_of([os.path.join(args.od, "od-bench"), "decode", "--pack", file, "--resident", "--parallel", "1", "--threads", str(threads),
                      "--tokens", str(args.tokens), "--runs", "1", "--json", *(["--cpu", cpu] if cpu else [])])
    return json.loads(said)["by_number"][0]["tok_per_s"]


def types(args):
    with open(args.config) as f:
        config = json.load(f)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        base, file = os.path.join(folder, "bf16.gguf"), os.path.join(folder, "type.gguf")
        file_of("BF16", config, base)
        print("| format | threads | CPU | tok/s | x BF16 | x llama.cpp |\n|---|---|---|---|---|---|")
        for kind in args.types.split(",") if args.types else gb.NAMES:
            file_of(kind, config, file)
            for threads in 1, 2:
                for cpu in args.cpus.split(","):
                    measure(args, kind, base, file, threads, cpu)


def measure(args, kind, base, file, threads, cpu):
    """One row of the table."""
    found = {"own": [], "bf16": [], "llama": []}
    for _ in range(args.rounds):
        found["bf16"].append(decode_rate(args, base, threads, cpu))
        found["own"].append(decode_rate(args, file, threads, cpu))
        llama = json.loads(output_of([args.llama_bench, "-m", file, "-t", str(threads), "-p", "0", "-n", str(args.tokens), "-r", "1",
                                      "-o", "json"]))
        found["llama"].append(llama[0]["avg_ts"])
    beside = {k: statistics.median(a / b for a, b in zip(found["own"], found[k])) for k in ("bf16", "llama")}
    print(f"| {kind} | {threads} | {cpu} | {statistics.median(found['own']):.1f} | {beside['bf16']:.2f} | {beside['llama']:.2f} |", flush=True)


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
    p = commands.add_parser("types")
    p.add_argument("--config", required=True)
    p.add_argument("--types", help="names, separated by commas (default: all)")
    p.add_argument("--cpus", default="avx2,avx512")
    p.add_argument("--llama-bench", default="llama-bench")
    p.add_argument("--od", default="build/bin", help="folder of od-bench")
    p.add_argument("--folder", help="for files as large as the model")
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    {"convert": convert, "run": run, "types": types}[args.command](args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""od-pack and the families of models: checkpoints as transformers saves them (tests/golden/families) through a pack and
back, by the reader that was written from docs/PACK-FORMAT.md alone, and what is refused of each family. Standard library."""
import copy
import glob
import json
import math
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model_config
import pack_reader as pr
import tiny_checkpoint as tc
from model_config import BIASES, Model
from pack_commands import at, check_record, contents, good, read, refused, resum, run_tests, same_bits, write

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "families")
NAMES = sorted(n for n in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, n, "config.json")))
FAMILIES = {"mixtral": "mixtral_top3", "qwen3_moe": "qwen3_moe_mlp_only", "qwen2_moe": "qwen2_moe_norm", "olmoe": "olmoe_clip",
            "deepseek_v2": "deepseek_v2_groups", "deepseek_v3": "deepseek_v3_groups", "glm4_moe": "glm4_moe_air",
            "glm4_moe_lite": "glm4_moe_lite_types", "minimax_m2": "minimax_m2_plain", "gpt_oss": "gpt_oss_bf16",
            "qwen3_next": "qwen3_next_plain", "qwen3_5_moe": "qwen3_5_moe_stacked", "phimoe": "phimoe_crossing",
            "gemma4": "gemma4_own_v"}
WITH_MTP = "deepseek_v3_groups", "glm4_moe_air", *(n for n in NAMES if n.startswith(("qwen3_next", "qwen3_5")))
GONE = "the field is not there"
PROPORTIONAL = dict(rope_theta=100.0, rope_type="proportional", partial_rotary_factor=0.5)
# As phimoe_crossing has it.
LONG = {"type": "longrope", "original_max_position_embeddings": 14, "short_factor": [1, 1.5, 2, 2.5], "long_factor": [1, 3, 9, 27.5],
        "short_mscale": 1.1, "long_mscale": 1.25}
YARN = {"type": "yarn", "factor": 8, "original_max_position_embeddings": 16}


def whole_golden(name):
    """A golden checkpoint's folder, configuration and tensors."""
    path, tens = os.path.join(GOLDEN, name), {}
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        tens.update(tc.read_safetensors(file))
    return path, json.loads(read(path, "config.json")), tens


def n_behind(cfg):
    """Layers behind the last one."""
    return cfg.get("num_mtp_modules" if cfg.get("model_type") == "minimax_m2" else "num_nextn_predict_layers", 0)


def golden(name):
    """The same without the layers that predict further tokens, which no pack has."""
    path, cfg, tens = whole_golden(name)
    n = cfg["num_hidden_layers"]
    behind = ("mtp.", *("model.layers.%d." % i for i in range(n, n + n_behind(cfg))))
    return path, cfg, {k: v for k, v in tens.items() if not k.startswith(behind)}


def cut_out(dtype, n_experts, expert, raw, at, step, n_rows):
    """Of a tensor [n_experts][rows][...]: every step-th row of an expert from the at-th on."""
    rows = len(raw) // n_experts // n_rows
    return b"".join(raw[(expert * n_rows + i) * rows:][:rows] for i in range(at, n_rows, step))


def turned(raw, n_in, n_out, each):
    """[n_in][n_out] to [n_out][n_in]."""
    return b"".join(raw[(i * n_out + o) * each:][:each] for o in range(n_out) for i in range(n_in))


def one_by_one(cfg, tens):
    """The checkpoint's tensors, those of several experts as each expert's own: matrices [out][in], gate apart from up."""
    spec, out = Model(cfg), dict(tens)
    for m in range(spec.n_moe):
        for part, shape in spec.parts.items():
            name, step = spec.stacked_name(m, part), 1 if part.startswith("down") else 2
            dtype, whole, raw = tens.get(name) or tens.get(name + "_blocks") or (None, None, None)
            if whole is None:
                continue
            rows, first = shape[0] * step, int(part.startswith("up"))
            for e in range(spec.n_experts):
                mine = spec.expert_name(m, e, part)
                if name not in tens:
                    scales = cut_out("U8", spec.n_experts, e, tens[name + "_scales"][2], first, step, rows)
                    block = [pr.block_size(n, n // each, least) for n, each, least in zip(shape, (1, 32), (1, 16))]
                    codes = cut_out(dtype, spec.n_experts, e, raw, first, step, rows)
                    out[mine] = pr.Scaled("F4_E2M1", shape, codes, "F8_E8M0", tuple(block), scales)
                    continue
                each = pr.WIDTH[dtype]
                if spec.family != "gpt_oss":  # gate above up, not turned
                    each *= math.prod(shape)
                    own = raw[(e * step + first) * each:][:each]
                elif part in BIASES:
                    own = cut_out(dtype, spec.n_experts, e, raw, first, step, rows)
                else:
                    size = len(raw) // spec.n_experts
                    own = turned(raw[e * size:(e + 1) * size], shape[1], rows, each)
                    own = cut_out(dtype, 1, 0, own, first, step, rows)
                out[mine] = (dtype, shape, own)
            for gone in (name, name + "_blocks", name + "_scales") * (part not in ("gate", "gate_bias")):
                out.pop(gone, None)
    return out


def golden_pack(name):
    """Its pack with shadows, made once; the codec differs from one to the next."""
    if not os.path.exists(at(name + ".pack")):
        good(golden(name)[0], at(name + ".pack"), "--shadow", "int8,nf4", "--codec", pr.CODECS[NAMES.index(name) % 4])
    return at(name + ".pack")


def with_fields(cfg, **changes):
    return {k: v for k, v in dict(copy.deepcopy(cfg), **changes).items() if v is not GONE}


def packed(name, cfg, tens):
    """The checkpoint through od-pack to the reader."""
    shutil.rmtree(at(name), ignore_errors=True)
    tc.write_checkpoint(at(name), cfg, tens)
    good(at(name), at(name + ".pack"), "--shadow", "none", "--force")
    pack = pr.Pack(at(name + ".pack"))
    assert pack.model["fingerprint"] == pack.fingerprint(), (name, pack.spec.text())
    return pack


# ---- what a pack holds ----

def test_texts_by_hand():
    """Of the reader: configurations' texts that were put together by hand from the document, and their bits of reals."""
    mixtral = ("family=mixtral hidden=32 vocab=296 experts=6 top_k=3 intermediate=24 rms_eps=3727c5ac tied_head=0; rope 0: "
               "dims=8 neighbours=0 theta=40c3880000000000 magnitude=3f800000; kind 0: mixer=gqa heads=4 kv_heads=2 k_dim=8 "
               "v_dim=8 window=12 scale=3eb504f3 rope=0 qkv_bias=0 o_bias=0 qk_norm=0 norm_eps=3727c5ac clip=00000000 "
               "nope=0 q_rank=0 kv_rank=0 groups=0 top_groups=0 renormalise=1 weight=3f800000 shared=0 shared_gate=0; "
               "layers 0 0")
    # ln 8 = 2.0794415, so m(1) = 1.20794415 and m(0.5) = 1.10397208: their quotient 1.09418000, scale 1.21875434 / 4.
    deepseek = ("family=deepseek_v2 hidden=32 vocab=296 experts=8 top_k=3 intermediate=12 rms_eps=358637bd tied_head=0; rope "
                "0: dims=8 neighbours=1 theta=40c3880000000000 magnitude=3f8c0e17 factor=4020000000000000 "
                "beta_fast=4040000000000000 beta_slow=3ff0000000000000 original_ctx=16; kind 0: mixer=mla heads=4 kv_heads=1 "
                "k_dim=16 v_dim=12 window=0 scale=3e9c0024 rope=0 qkv_bias=0 o_bias=0 qk_norm=0 norm_eps=358637bd "
                "clip=00000000 nope=8 q_rank=20 kv_rank=16 dense=48; kind 1: mixer=mla heads=4 kv_heads=1 k_dim=16 v_dim=12 "
                "window=0 scale=3e9c0024 rope=0 qkv_bias=0 o_bias=0 qk_norm=0 norm_eps=358637bd clip=00000000 nope=8 "
                "q_rank=20 kv_rank=16 groups=4 top_groups=2 renormalise=0 weight=40800000 shared=12 shared_gate=0; layers 0 "
                "0 1")
    qwen2 = ("family=qwen2_moe hidden=32 vocab=296 experts=7 top_k=3 intermediate=16 rms_eps=358637bd tied_head=0; rope "
             "0: dims=8 neighbours=0 theta=407f400000000000 magnitude=3f800000; kind 0: mixer=gqa heads=4 kv_heads=4 "
             "k_dim=8 v_dim=8 window=0 scale=3eb504f3 rope=0 qkv_bias=0 o_bias=0 qk_norm=0 norm_eps=358637bd "
             "clip=00000000 nope=0 q_rank=0 kv_rank=0 dense=40; kind 1: mixer=gqa heads=4 kv_heads=4 k_dim=8 v_dim=8 "
             "window=0 scale=3eb504f3 rope=0 qkv_bias=0 o_bias=0 qk_norm=0 norm_eps=358637bd clip=00000000 nope=0 "
             "q_rank=0 kv_rank=0 groups=0 top_groups=0 renormalise=0 weight=3f800000 shared=40 shared_gate=1; layers 0 1 "
             "0 1")
    # 12^-0.5 = 0.28867513; 1e-5 and 1e-20.
    glm = ("family=glm4_moe hidden=32 vocab=296 experts=8 top_k=3 intermediate=12 rms_eps=3727c5ac tied_head=0; rope 0: dims=6 "
           "neighbours=0 theta=40c3880000000000 magnitude=3f800000; kind 0: mixer=gqa heads=4 kv_heads=2 k_dim=12 v_dim=12 "
           "window=0 scale=3e93cd3a rope=0 qkv_bias=1 o_bias=0 qk_norm=0 norm_eps=3727c5ac clip=00000000 nope=0 q_rank=0 "
           "kv_rank=0 dense=48; kind 1: mixer=gqa heads=4 kv_heads=2 k_dim=12 v_dim=12 window=0 scale=3e93cd3a rope=0 "
           "qkv_bias=1 o_bias=0 qk_norm=0 norm_eps=3727c5ac clip=00000000 nope=0 q_rank=0 kv_rank=0 groups=1 top_groups=1 "
           "renormalise=1 weight=3f800000 shared=12 shared_gate=0 score=sigmoid router_bias=1 group_two=1 sum_eps=1e3ce508; "
           "layers 0 1 1")
    minimax = ("family=minimax_m2 hidden=32 vocab=296 experts=9 top_k=3 intermediate=16 rms_eps=358637bd tied_head=0; rope 0: "
               "dims=8 neighbours=0 theta=40c3880000000000 magnitude=3f800000; kind 0: mixer=gqa heads=4 kv_heads=2 k_dim=12 "
               "v_dim=12 window=0 scale=3e93cd3a rope=0 qkv_bias=0 o_bias=0 qk_norm=2 norm_eps=358637bd clip=00000000 nope=0 "
               "q_rank=0 kv_rank=0 groups=0 top_groups=0 renormalise=1 weight=3f800000 shared=0 shared_gate=0 score=sigmoid "
               "router_bias=1 group_two=0 sum_eps=00000000; layers 0 0")
    # 24^-0.5 = 0.20412415, 0.1 ln 8 + 1 = 1.20794415.
    gpt_oss = ("family=gpt_oss hidden=64 vocab=296 experts=6 top_k=3 intermediate=32 rms_eps=3727c5ac tied_head=0 expert_bias=1 "
               "act=clamped limit=40e00000; rope 0: dims=24 neighbours=0 theta=4059000000000000 magnitude=3f9a9dea "
               "factor=4020000000000000 beta_fast=4000000000000000 beta_slow=3fd0000000000000 original_ctx=16 between=1; kind 0: "
               "mixer=gqa heads=4 kv_heads=2 k_dim=24 v_dim=24 window=8 scale=3e5105ec rope=0 qkv_bias=1 o_bias=1 qk_norm=0 "
               "norm_eps=3727c5ac clip=00000000 nope=0 q_rank=0 kv_rank=0 sinks=1 groups=0 top_groups=0 renormalise=0 "
               "weight=3f800000 shared=0 shared_gate=0 score=logit router_bias=0 group_two=0 sum_eps=00000000 logit_bias=1; kind "
               "1: mixer=gqa heads=4 kv_heads=2 k_dim=24 v_dim=24 window=0 scale=3e5105ec rope=0 qkv_bias=1 o_bias=1 qk_norm=0 "
               "norm_eps=3727c5ac clip=00000000 nope=0 q_rank=0 kv_rank=0 sinks=1 groups=0 top_groups=0 renormalise=0 "
               "weight=3f800000 shared=0 shared_gate=0 score=logit router_bias=0 group_two=0 sum_eps=00000000 logit_bias=1; "
               "layers 0 1")
    # A quarter of 1 / 16 and half of 16 elements; 0.25.
    rest = "qkv_bias=0 o_bias=0 qk_norm=%d norm_eps=358637bd clip=00000000 nope=0 q_rank=0 kv_rank=0 "
    moe = " groups=0 top_groups=0 renormalise=1 weight=3f800000 shared=20 shared_gate=1; "
    gated = ("hidden=32 vocab=296 experts=8 top_k=3 intermediate=16 rms_eps=358637bd tied_head=0 norms_around_one=1; rope 0: dims=8 "
             "neighbours=0 theta=40c3880000000000 magnitude=3f800000; kind 0: mixer=delta heads=4 kv_heads=2 k_dim=8 v_dim=12 "
             "window=0 scale=00000000 rope=0 " + rest % 0 + "conv=4 by_key_head=%d" + moe + "kind 1: mixer=gqa heads=4 "
             "kv_heads=2 k_dim=16 v_dim=16 window=0 scale=3e800000 rope=0 " + rest % 1 + "gated=1" + moe + "layers 0 0 1")
    # 32^0.5 = 5.6568542 and 32^-0.5 = 0.17677670; of 16 elements, 8 pairs, a quarter turns.
    kind = ("mixer=gqa heads=4 kv_heads=%d k_dim=%d v_dim=%d window=%d scale=3f800000 rope=%d qkv_bias=0 o_bias=0 qk_norm=1 "
            "norm_eps=358637bd clip=00000000 nope=0 q_rank=0 kv_rank=0 v_norm=1 v_is_k=%d sandwich=1 scaled=1 groups=0 "
            "top_groups=0 renormalise=1 weight=3f800000 shared=20 shared_gate=0 router_norm=1 factors=1 logit_scale=3e3504f3")
    gemma = ("family=gemma4 hidden=32 vocab=296 experts=8 top_k=3 intermediate=12 rms_eps=358637bd tied_head=1 act=gelu "
             "embed_scale=40b504f3 logit_cap=40400000; rope 0: dims=12 neighbours=0 theta=40c3880000000000 magnitude=3f800000; "
             "rope 1: dims=16 neighbours=0 theta=412e848000000000 magnitude=3f800000 pairs=2; kind 0: " +
             kind % (2, 12, 12, 8, 0, 0) + "; kind 1: " + kind % (1, 16, 16, 0, 1, 1) + "; layers 0 0 1")
    # Layers 3 and 4 use the keys and values of layers 2 and 0.
    own = "kind %d: " + (kind % (2, 12, 12, 8, 0, 0)).replace("kv_heads=2 k_dim=12 v_dim=12 window=8", "kv_heads=2 k_dim=%d v_dim=%d window=%d").replace("rope=0", "rope=%d")
    shares = own.replace("sandwich", "kv_of=%d sandwich").replace("shared=20", "shared=40")
    sharing = ("family=gemma4 hidden=32 vocab=296 experts=5 top_k=2 intermediate=12 rms_eps=358637bd tied_head=0 act=gelu "
               "embed_scale=40b504f3 logit_cap=41f00000 layer_input=8; rope 0: dims=12 neighbours=0 theta=40c3880000000000 magnitude=3f800000; "
               "rope 1: dims=16 neighbours=0 theta=412e848000000000 magnitude=3f800000 pairs=2; " + own % (0, 16, 16, 0, 1) + "; " +
               own % (1, 12, 12, 8, 0) + "; " + shares % (2, 12, 12, 8, 0, 2) + "; " + shares % (3, 16, 16, 0, 1, 0) + "; layers 0 1 1 2 3")
    for name, want in (("gemma4_k_is_v", gemma), ("gemma4_shared_kv", sharing), ("qwen3_next_plain", "family=qwen3_next " + gated % 1), ("qwen3_5_moe_stacked", "family=qwen3_5_moe " + gated % 0),
                       ("mixtral_top3", mixtral), ("deepseek_v2_groups", deepseek), ("qwen2_moe_no_bias", qwen2),
                       ("glm4_moe_air", glm), ("minimax_m2_plain", minimax), ("gpt_oss_mxfp4", gpt_oss)):
        assert Model(golden(name)[1]).text() == want, Model(golden(name)[1]).text()


def check_info(path, pack):
    """What od-pack info says, against config.json as the reader takes it."""
    info, text, spec, cfg = json.loads(good("info", "--json", path).stdout), good("info", path).stdout, pack.spec, pack.config
    latent = spec.latent
    kv_heads, head = spec.heads_of()
    head = cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"] if latent else head
    want = dict(schema_version=3, fingerprint=pack.fingerprint(), family=spec.family, layers=cfg["num_hidden_layers"],
                moe_layers=spec.n_moe, hidden=cfg["hidden_size"], attention="mla" if latent else "gqa",
                heads=cfg["num_attention_heads"], kv_heads=1 if latent else kv_heads, head_dim=head,
                vocab=cfg["vocab_size"], experts=spec.n_experts, top_k=spec.top_k, intermediate=spec.inner,
                shared_intermediate=spec.shared(), experts_here=spec.n_moe * spec.n_experts,
                expert_weights=3 * spec.n_moe * spec.n_experts * spec.inner * cfg["hidden_size"],
                dense_bytes=os.path.getsize(os.path.join(path, "dense.bin")),
                experts_bytes=os.path.getsize(os.path.join(path, "experts.bin")), tokenizer=True)
    assert {k: info[k] for k in want} == want, info
    n = sum(math.prod(pack.shape(name)) for name in pack.shadow_names())
    for x in info["shadows"]:
        assert abs(x["bits_per_weight"] - 8 * os.path.getsize(os.path.join(path, x["file"])) / n) < 1e-9
    some = " (%d with experts)" % spec.n_moe if spec.n_moe < spec.n_layers else ""
    kv = "latent of %d" % cfg["kv_lora_rank"] if latent else "%d key-value" % kv_heads
    for line in ("%s: %d layers%s, hidden %d, %d heads (%s) of %d, vocabulary %d" % (
                     spec.family, spec.n_layers, some, spec.hidden, spec.heads, kv, head, cfg["vocab_size"]),
                 "%d a layer, top-%d, intermediate %d, " % (spec.n_experts, spec.top_k, spec.inner)):
        assert line in text, (line, text)
    assert ("shared by all rows: intermediate %d" % spec.shared() in text) == (spec.shared() > 0), text


def check_shadows(pack, precisions=("int8", "nf4")):
    for precision in precisions:
        for name, record in pack.shadow(precision).items():
            (n_out, n_in), w = pack.shape(name), pack.weights(name)
            check_record(record, precision, [w[r * n_in:(r + 1) * n_in] for r in range(n_out)])


def test_golden_checkpoints():
    """Every tensor's bits, its place by MoE layer, fingerprint, shadows, and what is said of the pack."""
    roles = set()
    assert {Model(golden(n)[1]).family for n in NAMES} == set(FAMILIES)
    for name in NAMES:
        (path, cfg, tens), out = golden(name), golden_pack(name)
        pack, tens = pr.Pack(out), one_by_one(cfg, tens)
        assert pack.scaled == {k: t for k, t in tens.items() if isinstance(t, pr.Scaled)}, name
        same_bits(pack, {k: t for k, t in tens.items() if k not in pack.scaled})
        assert pack.model["fingerprint"] == pack.fingerprint(), (name, pack.spec.text())
        good("verify", out, "--against", path)
        check_shadows(pack)
        check_info(out, pack)
        roles |= {role for role, _, _ in pack.spec.dense}
        # A MoE layer's number is not m where dense layers come first.
        ups = [pack.spec.expert_name(m, e, "up") for m in range(pack.spec.n_moe) for e in range(pack.spec.n_experts)]
        if pack.spec.stacked_name(0, "up") + "_blocks" * bool(pack.scaled) in golden(name)[2]:
            ups = [pack.spec.stacked_name(m, "up") + "_blocks" * bool(pack.scaled) for m in range(pack.spec.n_moe)
                   for _ in range(pack.spec.n_experts)]
        assert [e["source"]["up"]["tensor"] for e in pack.model["experts"]["table"]] == ups
        behind = set(whole_golden(name)[2]) - set(golden(name)[2])
        assert bool(behind) == (name in WITH_MTP) and not behind & set(pack.tensors), name
    every = set(model_config.WHOLE) | {r for r, _, _ in model_config.ROLES}
    assert every == roles, every - roles


def test_same_bytes_from_any_threads():
    for family, name in FAMILIES.items():
        out = golden_pack(name)
        codec = json.loads(read(out, "model.json"))["codec"]
        good(golden(name)[0], at("again"), "--shadow", "int8,nf4", "--codec", codec, "--threads", "3", "--force")
        assert contents(at("again")) == contents(out), family


def stacked_names(spec):
    """Tensors of all experts of the last layer, in whatever type."""
    return [spec.stacked_name(spec.n_moe - 1, part) + end for part in ("up", "down") for end in ("", "_bias", "_blocks", "_scales")]


def test_against_a_changed_checkpoint():
    """One bit of one tensor of each role, and of an expert, differs: it is found and the tensor named."""
    for name in [*FAMILIES.values(), "gpt_oss_mxfp4", "gemma4_shared_kv"]:
        path, cfg, tens = golden(name)
        spec = Model(cfg)
        some = [n for n in (spec.experts()[-2][0], *stacked_names(spec)) if n in tens]
        assert len(some) == {"gpt_oss_bf16": 4, "gpt_oss_mxfp4": 6, "qwen3_5_moe_stacked": 2, "gemma4_own_v": 2, "gemma4_shared_kv": 2}.get(name, 1), some
        places = {role: spec.dense_name(role, layer) for role, layer, _ in spec.dense}  # of each role the last
        shutil.rmtree(at("changed"), ignore_errors=True)
        shutil.copytree(path, at("changed"))
        good("verify", golden_pack(name), "--against", at("changed"))
        for file in glob.glob(at("changed", "model*")):  # several, if the golden is in several
            os.unlink(file)
        for tensor in [*places.values(), *some]:
            dtype, shape, raw = tens[tensor]
            other = dict(tens, **{tensor: (dtype, shape, raw[:-1] + bytes([raw[-1] ^ 1]))})
            tc.write_safetensors(at("changed", "model.safetensors"), other)
            refused("verify", golden_pack(name), "--against", at("changed"), says=["differs", tensor])


VARIANTS = [
    ("qwen3_moe_plain", dict(attention_bias=True)), ("qwen3_moe_plain", dict(head_dim=GONE)),
    ("qwen3_moe_plain", dict(num_key_value_heads=GONE, mlp_only_layers=None, norm_topk_prob=None)),
    ("qwen3_moe_plain", dict(decoder_sparse_step=3, attention_bias=True, tie_word_embeddings=True)),
    ("qwen3_moe_window", dict(sliding_window=GONE)), ("qwen3_moe_window", dict(sliding_window=None)),
    ("qwen3_moe_mlp_only", dict(rope_scaling=dict(YARN, attention_factor=1.25, beta_fast=16, beta_slow=2))),
    ("qwen3_moe_mlp_only", dict(rope_scaling=dict(YARN, factor=GONE))),
    ("qwen3_moe_mlp_only", dict(rope_scaling=dict(YARN, truncate=False))),
    ("qwen3_moe_mlp_only", dict(rope_scaling=dict(YARN, original_max_position_embeddings=GONE))),
    ("qwen3_moe_mlp_only", dict(rope_scaling=dict(YARN, factor=1.5, mscale=2.0, mscale_all_dim=1.0))),
    ("qwen3_moe_mlp_only", dict(rope_theta=GONE, rope_scaling=GONE, rope_parameters=dict(YARN, type=GONE, rope_type="yarn",
                                                                                      rope_theta=5e6))),
    ("qwen2_moe_plain", dict(use_sliding_window=True)),
    ("qwen2_moe_plain", dict(use_sliding_window=True, max_window_layers=1, num_hidden_layers=6)),
    ("qwen2_moe_plain", dict(use_sliding_window=True, layer_types=["full_attention", "sliding_attention", "full_attention"])),
    ("qwen2_moe_plain", dict(qkv_bias=False, mlp_only_layers=[0, 2, 9], shared_expert_intermediate_size=64)),
    ("olmoe_plain", dict(rms_norm_eps=GONE)),
    ("olmoe_plain", dict(attention_bias=True, clip_qkv=2.5)), ("olmoe_plain", dict(num_key_value_heads=GONE, head_dim=12)),
    ("mixtral_top3", dict(head_dim=12, sliding_window=GONE)), ("mixtral_top3", dict(architectures=GONE, sliding_window=None)),
    ("mixtral_top3", dict(model_type=GONE, num_key_value_heads=None)),
    ("mixtral_top3", dict(num_attention_heads=8, num_key_value_heads=GONE, rope_theta=GONE)),
    ("deepseek_v2_lite", dict(n_shared_experts=None)),
    ("deepseek_v2_lite", dict(n_shared_experts=0, first_k_dense_replace=GONE)),
    ("deepseek_v2_lite", dict(q_lora_rank=24, topk_method=None, routed_scaling_factor=None)),
    ("deepseek_v2_lite", dict(rope_scaling=dict(YARN, mscale=0.7), num_hidden_layers=5, first_k_dense_replace=3)),
    ("deepseek_v2_lite", dict(rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=0), tie_word_embeddings=True)),
    ("deepseek_v3_groups", dict(n_group=2, topk_group=1, norm_topk_prob=None, routed_scaling_factor=None, q_lora_rank=None)),
    ("deepseek_v3_groups", dict(first_k_dense_replace=None, num_hidden_layers=5, n_shared_experts=None, scoring_func=None)),
    ("deepseek_v3_one_group", dict(model_type="kimi_k2", rope_scaling=dict(YARN, beta_fast=1, beta_slow=1, mscale_all_dim=1))),
    ("deepseek_v3_one_group", dict(model_type=GONE, num_nextn_predict_layers=2, topk_method=GONE, moe_layer_freq=GONE)),
    ("glm4_moe_air", dict(use_qk_norm=True, attention_bias=None, partial_rotary_factor=None, norm_topk_prob=None)),
    ("glm4_moe_air", dict(partial_rotary_factor=1.0, n_shared_experts=0, first_k_dense_replace=None, head_dim=GONE)),
    ("glm4_moe_air", dict(n_group=2, topk_group=2, rope_scaling=YARN, routed_scaling_factor=None)),
    ("glm4_moe_norms", dict(n_group=2, topk_group=2, num_local_experts=8, n_routed_experts=GONE)),
    ("glm4_moe_lite_types", dict(mlp_layer_types=None, first_k_dense_replace=1, q_lora_rank=None, head_dim=8)),
    ("glm4_moe_lite_types", dict(mlp_layer_types=GONE, routed_scaling_factor=None, num_hidden_layers=4, rope_scaling=YARN)),
    ("minimax_m2_plain", dict(rotary_dim=None, num_key_value_heads=None)),
    ("minimax_m2_plain", dict(num_attention_heads=8, num_key_value_heads=GONE, rope_theta=None)),
    ("minimax_m2_plain", dict(rotary_dim=None, partial_rotary_factor=0.5, tie_word_embeddings=True, attn_type_list=None)),
    ("minimax_m2_plain", dict(rotary_dim=6, rope_scaling=dict(YARN, partial_rotary_factor=0.5), scoring_func=GONE)),
    ("gpt_oss_f32", dict(attention_bias=GONE, swiglu_limit=GONE, layer_types=GONE, tie_word_embeddings=False)),
    ("phimoe_crossing", dict(lm_head_bias=False, attention_bias=None, sliding_window=12, router_jitter_noise=GONE)),
    ("phimoe_crossing", dict(original_max_position_embeddings=GONE, tie_word_embeddings=True)),
    ("phimoe_crossing", dict(rope_scaling=None, architectures=["PhimoeForCausalLM"], router_jitter_noise=0)),
    ("phimoe_no_bias", dict(attention_bias=True, sliding_window=128, head_dim=12)),
    ("gpt_oss_f32", dict(experts_per_token=GONE, rope_parameters=None, rope_scaling=dict(YARN, truncate=True))),
    ("qwen3_next_plain", dict(layer_types=["full_attention"] * 3, attention_bias=True, full_attention_interval=7)),
    ("qwen3_next_plain", dict(num_hidden_layers=5, full_attention_interval=GONE, decoder_sparse_step=2, norm_topk_prob=None)),
    ("qwen3_next_plain", dict(partial_rotary_factor=GONE, linear_conv_kernel_dim=2, linear_num_key_heads=4, tie_word_embeddings=True)),
    ("qwen3_5_moe_stacked", dict(model_type=GONE, layer_types=["linear_attention", "full_attention"] * 2, num_hidden_layers=4)),
    ("qwen3_5_moe_stacked", dict(mlp_only_layers=[0], linear_value_head_dim=5, rope_parameters=dict(YARN, rope_theta=1e5))),
    ("deepseek_v2_groups", dict(n_group=2, topk_group=1, qk_rope_head_dim=12, rope_scaling=dict(YARN, mscale_all_dim=0.4))),
    ("gemma4_own_v", dict(attention_k_eq_v=True, layer_types=GONE, num_hidden_layers=8, num_global_key_value_heads=2)),
    ("gemma4_own_v", dict(attention_k_eq_v=True, num_global_key_value_heads=GONE, tie_word_embeddings=None, architectures=GONE)),
    ("gemma4_own_v", dict(rope_parameters=GONE, sliding_window=GONE, model_type=GONE, final_logit_softcapping=7.5)),
    ("gemma4_own_v", dict(layer_types=["full_attention"] * 3, global_head_dim=8, head_dim=GONE)),
    ("gemma4_own_v", dict(num_kv_shared_layers=1)),
    ("gemma4_k_is_v", dict(num_kv_shared_layers=1, use_double_wide_mlp=True, num_hidden_layers=7, layer_types=GONE)),
    ("gemma4_shared_kv", dict(num_kv_shared_layers=3, use_double_wide_mlp=None, hidden_size_per_layer_input=5, attention_k_eq_v=True)),
    ("gemma4_k_is_v", dict(per_layer_config={"02": dict(num_key_value_heads=1, head_dim=20)}, global_head_dim=GONE)),
    ("gemma4_k_is_v", dict(per_layer_config={"0": dict(head_dim=8), "1": dict(head_dim=8)}, num_global_key_value_heads=GONE)),
]


def test_variants():
    """Settings that no golden checkpoint has: tensors, shapes and fingerprint are what the reader expects."""
    for name, fields in VARIANTS:
        cfg = golden(name)[1]
        fields = {k: with_fields(v) if isinstance(v, dict) else v for k, v in fields.items()}
        cfg = with_fields(cfg, **fields)
        tens = tc.tensors(cfg, seed=3)
        same_bits(packed("variant", cfg, tens), tens)
        good("verify", at("variant.pack"), "--against", at("variant"))


def test_fingerprints_tell_models_apart():
    """What changes numbers changes the fingerprint of the same tensors; what does not, does not."""
    numbers = {
        "mixtral": [dict(sliding_window=13), dict(rms_norm_eps=1.1e-5), dict(rope_theta=10001.0), dict(num_experts_per_tok=2)],
        "qwen3_moe": [dict(norm_topk_prob=False), dict(use_sliding_window=True, sliding_window=8), dict(num_experts_per_tok=3),
                      dict(rope_scaling=None), dict(rope_scaling=YARN), dict(rope_scaling=dict(YARN, factor=4, beta_fast=33)),
                      dict(rope_scaling=dict(YARN, truncate=False)),
                      dict(rope_scaling=dict(YARN, factor=4, attention_factor=1.2))],
        "qwen2_moe": [dict(norm_topk_prob=False), dict(use_sliding_window=True),
                      dict(use_sliding_window=True, sliding_window=9), dict(use_sliding_window=True, max_window_layers=2),
                      dict(rope_theta=1e6)],
        "olmoe": [dict(clip_qkv=None), dict(clip_qkv=1.0), dict(norm_topk_prob=False), dict(rms_norm_eps=1e-6)],
        "deepseek_v2": [dict(topk_method="greedy"), dict(topk_group=3), dict(n_group=2), dict(routed_scaling_factor=1.0),
                        dict(rope_scaling=None), dict(rope_scaling=YARN), dict(rms_norm_eps=2e-6),
                        dict(rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0))],
        "deepseek_v3": [dict(topk_group=3), dict(n_group=2), dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False),
                        dict(rope_scaling=None), dict(num_experts_per_tok=2)],
        "glm4_moe": [dict(norm_topk_prob=False), dict(routed_scaling_factor=2.5), dict(partial_rotary_factor=1.0),
                     dict(n_group=2, topk_group=1, num_experts_per_tok=2), dict(rope_theta=500.0)],
        "glm4_moe_lite": [dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0), dict(rope_scaling=YARN)],
        "minimax_m2": [dict(rotary_dim=4), dict(rotary_dim=12), dict(rope_theta=500.0), dict(num_experts_per_tok=2)],
        "gemma4": [dict(sliding_window=9), dict(final_logit_softcapping=3.0), dict(top_k_experts=3), dict(rms_norm_eps=2e-6),
                   *[dict(rope_parameters=dict(full_attention=o, sliding_attention=dict(rope_theta=100.0))) for o in (
                       dict(rope_theta=100.0), dict(rope_theta=500.0), dict(PROPORTIONAL), dict(PROPORTIONAL, factor=2.0))]],
        "phimoe": [dict(rope_scaling=None), dict(sliding_window=9), dict(router_jitter_noise=0.02), dict(rope_scaling=LONG),
                   dict(rope_scaling=dict(LONG, long_factor=[1, 3, 9, 27])), dict(rope_scaling=dict(LONG, short_mscale=1.0)),
                   dict(rope_scaling=dict(LONG, long_mscale=1.0)), dict(rope_scaling=dict(LONG, short_factor=[1, 1, 1, 1])),
                   dict(rope_scaling=dict(LONG, original_max_position_embeddings=15), original_max_position_embeddings=15)],
        "gpt_oss": [dict(swiglu_limit=2.0), dict(sliding_window=6), dict(layer_types=["sliding_attention"] * 2),
                    dict(layer_types=GONE), dict(num_experts_per_tok=3), dict(rope_parameters=dict(YARN, rope_theta=1e5)),
                    dict(rope_parameters=dict(rope_type="default", rope_theta=1e5))],
        "qwen3_next": [dict(norm_topk_prob=False), dict(partial_rotary_factor=0.25), dict(rms_norm_eps=1e-5), dict(rope_theta=500.0),
                       dict(num_experts_per_tok=2)],
        "qwen3_5_moe": [dict(num_experts_per_tok=2), dict(rope_parameters=dict(rope_theta=500.0, partial_rotary_factor=0.5)),
                        dict(rope_parameters=dict(rope_theta=500.0)), dict(rope_parameters=dict(YARN, rope_theta=500.0))],
    }
    other = dict(attention_dropout=0.5, initializer_range=0.1, use_cache=False, torch_dtype="float32", transformers_version="9",
                 router_aux_loss_coef=0.5, bos_token_id=3, eos_token_id=4, max_position_embeddings=256)
    for family, name in FAMILIES.items():
        _, cfg, tens = golden(name)
        seen = {packed("print", cfg, tens).fingerprint()}
        more = dict(other, sliding_window=256) if family == "phimoe" else other  # a window that no text exceeds
        assert packed("print", with_fields(cfg, **more), tens).fingerprint() in seen, family
        for fields in numbers[family]:
            seen.add(packed("print", with_fields(cfg, **fields), tens).fingerprint())
        assert len(seen) == 1 + len(numbers[family]), (family, fields)


def test_shares():
    """Experts are shared out by m, and a share of layers that are not all MoE layers is whole."""
    for name in ("qwen3_moe_mlp_only", "deepseek_v2_groups"):
        spec = Model(golden(name)[1])
        for w in range(2):
            good("--share", "%d/2" % (w + 1), "--group-size", "1", golden_pack(name), at("share"))
            good("verify", at("share"))
            state = read(at("share"), "spool.state").decode().splitlines()
            want = ["".join("01"[m % 2 == w or e % 2 == w] for e in range(spec.n_experts)) for m in range(spec.n_moe)]
            assert state[2:-1] == ["share 2 %d 2" % w, *want], state
            info = json.loads(good("info", "--json", at("share")).stdout)
            assert (info["experts_here"], info["moe_layers"]) == ("".join(want).count("1"), spec.n_moe)
            shutil.rmtree(at("share"))


# Of each family that may be a part: checkpoint, outer model_type and architecture, tensors left out, a tensor of a layer.
PARTS = [("qwen3_5_moe_stacked", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",
          {"model.visual.patch_embed.proj.weight": ("BF16", [3, 2, 1], bytes(range(12))), "mtp.norm.weight": ("F32", [1], bytes(4)),
           "model.visual.blocks.0.norm1.bias": ("F16", [2], bytes(range(4)))},
          ("2 tensors model.visual.*", "1 tensor mtp.*"), "linear_attn.A_log"),
         ("gemma4_k_is_v", "gemma4", "Gemma4ForConditionalGeneration",
          {"model.vision_tower.patch_embedder.input_proj.weight": ("BF16", [3, 2, 1], bytes(range(12))),
           "model.vision_tower.std_bias": ("F32", [1], bytes(4)), "model.embed_vision.embedding_projection.weight": ("F16", [2], bytes(4))},
          ("2 tensors model.vision_tower.*", "1 tensor model.embed_vision.*"), "layer_scalar")]


def test_text_parts():
    """A multimodal model's text part, with experts in one tensor or one by one, is the text-only model: the same bits under the same
    names, and one fingerprint. Pictures are left out, which od-pack says."""
    for name, family, architecture, pictures, left_out, of_layer in PARTS:
        _, cfg, tens = golden(name)
        want = json.loads(read(golden_pack(name), "model.json"))["fingerprint"]
        outer, renamed = tc.multimodal(cfg, tens, family, architecture)
        for config, tensors in ((cfg, one_by_one(cfg, tens)), (outer, {**renamed, **pictures})):
            shutil.rmtree(at("parts"), ignore_errors=True)
            tc.write_checkpoint(at("parts"), config, tensors)
            shutil.copy(os.path.join(golden(name)[0], "tokenizer.json"), at("parts"))
            said = good(at("parts"), at("parts.pack"), "--shadow", "int8", "--force").stderr
            pack = pr.Pack(at("parts.pack"))
            assert want == pack.fingerprint() == pack.model["fingerprint"]
            same_bits(pack, one_by_one(cfg, tens))
            check_shadows(pack, ["int8"])
            good("verify", at("parts.pack"), "--against", at("parts"))
            assert all(("left out: " + what in said) == (config is outer) for what in left_out), said
        tc.write_small(at("bad"), outer)
        for more in ("model.audio.conv.weight", "visual.norm.weight", "model.layers.0." + of_layer,
                     "model.language_model.visual.norm.weight"):
            tc.write_safetensors(at("bad", "model.safetensors"), dict(renamed, **{more: ("F32", [2], bytes(8))}))
            nothing_is_made(more, "is not one of a %s model" % family)
        lost = "model.language_model.layers.0." + of_layer
        tc.write_safetensors(at("bad", "model.safetensors"), {k: t for k, t in renamed.items() if k != lost})
        nothing_is_made(lost, "missing")
        tc.write_small(at("bad"), cfg)
        tc.write_safetensors(at("bad", "model.safetensors"), dict(tens, **pictures))
        nothing_is_made("vis", "is not one of a %s model" % family)
        shutil.rmtree(at("bad"))


def test_tied_outside():
    """Of a multimodal model: the class that its configuration names reads tie_word_embeddings beside text_config."""
    for name, family, architecture, _, _, _ in PARTS:
        _, cfg, _ = golden(name)
        for outside, inside, tied in ((True, GONE, True), (True, False, True), (True, True, True), (False, True, False),
                                      (None, True, True), (GONE, True, True), (GONE, False, False)):
            cfg = with_fields(cfg, tie_word_embeddings=inside)
            tens = tc.tensors(with_fields(cfg, tie_word_embeddings=tied), seed=4)
            assert ("lm_head.weight" in tens) == (not tied)
            outer, renamed = tc.multimodal(cfg, tens, family, architecture)
            same_bits(packed("tied", with_fields(outer, tie_word_embeddings=outside), renamed), tens)


# ---- what is refused ----

def nothing_is_made(*says):
    for name in ("bad.pack", "bad.pack.partial"):  # of a case that failed
        shutil.rmtree(at(name), ignore_errors=True)
    p = refused(at("bad"), at("bad.pack"), says=["error", *says])
    assert not os.path.exists(at("bad.pack")) and not os.path.exists(at("bad.pack.partial")), says
    assert "kept in" not in p.stderr, p.stderr
    return p.stderr


MODELS = [*FAMILIES.values(), "gemma4_k_is_v", "gemma4_shared_kv", "deepseek_v2_lite", "qwen2_moe_no_bias", "glm4_moe_norms", "biases"]


def model_to_break(name):
    """A golden checkpoint, its experts one by one; or one of a variant that has all biases."""
    if name != "biases":
        return golden(name)[1], one_by_one(*golden(name)[1:])
    cfg = with_fields(golden("qwen3_moe_step")[1], attention_bias=True, tie_word_embeddings=False)
    return cfg, tc.tensors(cfg, seed=8)


def bad_tensors(cfg, tens):
    """Of one tensor of each role, and of an expert: what it becomes (None: it is missing), and what is said of it."""
    spec = Model(cfg)
    last = {role: (spec.dense_name(role, layer), shape) for role, layer, shape in spec.dense}
    for role, (name, shape) in [*last.items(), ("expert", spec.experts()[-1]), ("expert", spec.experts()[-2]),
                                ("expert", spec.experts()[0])]:
        dtype, _, raw = tens[name]
        shapes = [[1, shape[0]], [shape[0], 1]]
        if len(shape) == 2:
            shapes = [s for s in (shape[::-1], [math.prod(shape)], [*shape, 1]) if s != shape]
        if len(shape) == 3:
            shapes = [[shape[0], shape[2]], [math.prod(shape)], [shape[0], shape[2], 1]]
        stacked = spec.stacks and name == spec.experts()[0][0]  # that name is what published models have
        yield name, None, [spec.stacked_name(0, "gate") if stacked else name, "missing"]
        for s in shapes:
            yield name, (dtype, s, raw), [name, "expected shape %s" % shape, "found %s" % s]
        half = len(raw) // 2
        if shape[0] % 2 == 0:
            yield name, (dtype, [shape[0] // 2, *shape[1:]], raw[:half]), [name, "expected shape %s" % shape]
        vector = len(shape) == 1 or role in ("embed", "layer_embed")
        for wrong in ("I16", "F8_E4M3", "I8"):
            if wrong == "F8_E4M3" and not vector:
                continue  # a matrix may have it
            body = bytes(math.prod(shape) * (2 if wrong == "I16" else 1))
            yield name, (wrong, shape, body), [name, wrong]


def test_bad_tensors():
    """Missing, of another shape, of a wrong type: every role of every family."""
    n, seen = 0, set()
    for name in MODELS:
        cfg, tens = model_to_break(name)
        seen |= {role for role, _, _ in Model(cfg).dense}
        tc.write_small(at("bad"), cfg)
        tc.write_safetensors(at("bad", "model.safetensors"), tens)
        good(at("bad"), at("bad.pack"), "--shadow", "none", "--force")  # so that what follows is for what is changed
        for tensor, to, says in bad_tensors(cfg, tens):
            other = {k: v for k, v in dict(tens, **{tensor: to}).items() if v is not None}
            tc.write_safetensors(at("bad", "model.safetensors"), other)
            nothing_is_made(*says)
            n += 1
        shutil.rmtree(at("bad"))
    assert seen == set(model_config.WHOLE) | {r for r, _, _ in model_config.ROLES} and n > 500, (n, seen)


def test_bad_stacked_tensors():
    """Of tensors of all experts of a layer: missing, of another shape, of a wrong type, too many."""
    n = 0
    for name in ("gpt_oss_bf16", "gpt_oss_f32", "gpt_oss_mxfp4", "qwen3_5_moe_stacked", "gemma4_k_is_v"):
        _, cfg, tens = golden(name)
        tc.write_small(at("bad"), cfg)
        for tensor in [t for t in stacked_names(Model(cfg)) if t in tens]:
            dtype, shape, raw = tens[tensor]
            other = [[shape[0], shape[2], shape[1], *shape[3:]]] if shape[2:] and shape[1] != shape[2] else []
            other += [[shape[0] * shape[1], *shape[2:]], [1, *shape], [shape[0] - 1, *shape[1:]], [shape[0], shape[1] - 1, *shape[2:]]]
            cases = [((dtype, s, raw[:math.prod(s) * len(raw) // math.prod(shape)]), ["expected shape [%s]" % ", ".join(map(str, shape))])
                     for s in other]
            cases += [((wrong, shape, bytes(math.prod(shape) * (2 if wrong == "I16" else 1))), ["expected dtype", wrong])
                      for wrong in ("I16", "F8_E4M3", "I8")]
            for to, says in cases + [(None, ["missing"])]:
                changed = {k: v for k, v in dict(tens, **{tensor: to}).items() if v is not None}
                tc.write_safetensors(at("bad", "model.safetensors"), changed)
                nothing_is_made(tensor if to or not tensor.endswith("_blocks") else tensor[:-len("_blocks")], *says)
                n += 1
        spec = Model(cfg)
        more = [spec.expert_name(1, 0, "up"), spec.expert_name(1, 2, "down_bias"), spec.stacked_name(0, "up") + "_scale",
                spec.stacked_name(0, "down").replace(".0.", ".%d." % spec.n_layers)]
        for tensor in more + [t for t in stacked_names(spec) if t not in tens and name != "gpt_oss_mxfp4"]:
            tc.write_safetensors(at("bad", "model.safetensors"), dict(tens, **{tensor: ("U8", [2], bytes(2))}))
            nothing_is_made(tensor, "is not one of a %s model" % spec.family)
            n += 1
        shutil.rmtree(at("bad"))
    # Rows of MXFP4 are whole blocks.
    _, cfg, tens = golden("gpt_oss_mxfp4")
    tc.write_checkpoint(at("bad"), with_fields(cfg, intermediate_size=24), tens)
    nothing_is_made("gate_up_proj")
    shutil.rmtree(at("bad"))
    assert n > 100, n


def surplus(spec):
    """Names of tensors that the model has not, though another model has, or another layer: also the one behind all."""
    for layer in [*range(spec.n_layers), spec.n_layers + n_behind(spec.cfg)]:
        for role, _, _ in model_config.ROLES:
            yield spec.dense_name(role, layer)
        yield "model.layers.%d.mlp.experts.0.up_proj.weight" % layer
        yield "model.layers.%d.block_sparse_moe.experts.0.w1.weight" % layer
    yield from (spec.experts()[-1][0].replace(".%d." % (spec.n_experts - 1), ".%d." % spec.n_experts), "model.norm.bias",
                "lm_head.bias", "model.layers.0.input_layernorm.bias", "model.layers.0.mlp.gate.e_score_correction_bias",
                "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.self_attn.sinks", "mtp.fc.weight")


def test_layers_behind():
    """MiniMax-M2's own field says how many there may be, some or all; vLLM leaves out the same."""
    _, cfg, tens = whole_golden("minimax_m2_plain")
    assert cfg["num_mtp_modules"] == 3 and cfg["num_hidden_layers"] == 2
    for layers in ([2], [2, 3, 4]):
        gate = "block_sparse_moe.gate.weight"
        behind = {"model.layers.%d.%s" % (i, name): t for i in layers
                  for name, t in (("eh_proj.weight", ("F32", [32, 64], bytes(8192))), (gate, tens["model.layers.1." + gate]))}
        assert packed("behind", cfg, {**tens, **behind}).tensors.keys() == packed("before", cfg, tens).tensors.keys()


def test_surplus_tensors():
    """What a layer has not: dense layers have no router, MoE layers no plain network, some attentions no bias or norm."""
    n = 0
    for name in MODELS:
        cfg, tens = model_to_break(name)
        tc.write_small(at("bad"), cfg)
        own = {Model(cfg).stacked_name(0, "up")} if Model(cfg).stacks else set()  # it is what they have
        own |= {"mtp.fc.weight"} if Model(cfg).gated else set()  # left out
        own |= {Model(cfg).dense_name(role, i) for role in ("attn_k", "attn_v", "attn_k_norm", "attn_k_bias", "attn_v_bias")
                for i in range(Model(cfg).n_layers)
                if Model(cfg).kv_of(i) is not None}  # left out
        for tensor in sorted(set(surplus(Model(cfg))) - set(tens) - own):
            tc.write_safetensors(at("bad", "model.safetensors"), dict(tens, **{tensor: ("F32", [2], bytes(8))}))
            nothing_is_made(tensor, "is not one of a %s model" % Model(cfg).family)
            n += 1
        shutil.rmtree(at("bad"))
    assert n > 400, n


def test_empty_tensors():
    """transformers writes shared experts of no rows where n_shared_experts is 0."""
    name = "model.layers.2.mlp.shared_experts.%s_proj.weight"
    _, cfg, tens = golden("deepseek_v3_groups")
    cfg = with_fields(cfg, n_shared_experts=0)
    tens = {k: v for k, v in tens.items() if "shared_experts" not in k}
    tens |= {name % "up": ("BF16", [0, 32], b""), name % "down": ("BF16", [32, 0], b"")}
    tc.write_checkpoint(at("bad"), cfg, tens)
    good(at("bad"), at("bad.pack"), "--shadow", "none", "--force")
    tc.write_checkpoint(at("bad"), cfg, dict(tens, **{name % "up": ("BF16", [1, 32], bytes(64))}))
    nothing_is_made(name % "up", "is not one of a deepseek_v3 model")


# Fields, what they must not be, and words of the message beside the field's name.
EVERYWHERE = [
    ("hidden_act", ["gelu", "gelu_pytorch_tanh", "relu", "", 1]), ("mlp_bias", [True, 1]), ("lm_head_bias", [True]),
    ("use_qk_norm", [True]), ("partial_rotary_factor", [0.5, 0, "1"]), ("embedding_multiplier", [12, 0.5]),
    ("residual_multiplier", [0.22]), ("logits_scaling", [8]), ("logit_scale", [0.0625]), ("attn_logit_softcapping", [50.0]),
    ("final_logit_softcapping", [30.0]), ("swiglu_limit", [7.0]), ("sliding_window", [16, "16"]),
    ("layer_types", [["sliding_attention"] * 3, ["full_attention", "linear_attention"], [1], "full_attention"]),
    ("rope_scaling", [{"type": t, "factor": 2.0} for t in ("linear", "dynamic", "llama3", "longrope", "su", "ntk", "")]),
    ("rope_scaling", [{"rope_type": "linear", "factor": 2.0}, {"rope_type": 1}, 2.0, [], "yarn"]),
    ("rope_scaling", [{"rope_type": "default", "partial_rotary_factor": 0.5}, dict(YARN, truncate=0), {"type": "yarn"},
                      dict(YARN, factor=-1), dict(YARN, factor="8"), dict(YARN, original_max_position_embeddings=0)]),
    ("rope_parameters", [{"rope_type": "proportional", "rope_theta": 1e4}, {"rope_type": "linear", "factor": 2}, 1]),
    ("rope_theta", [0, -1, "10000", 1e13]), ("rms_norm_eps", [GONE, None, -1e-6, "1e-6", 2]),
    ("hidden_size", [GONE, None, 0, -32, 32.0, "32", 1 << 40]), ("num_hidden_layers", [GONE, 0, -1, 2049, 3.0]),
    ("vocab_size", [GONE, 0, "296"]), ("num_attention_heads", [GONE, 0, 1 << 40]), ("num_experts_per_tok", [GONE, 0, 17, 2.0]),
    ("max_position_embeddings", [GONE, 0]), ("tie_word_embeddings", [0, "false"]),
    ("model_type", ["llama", "qwen3", "deepseek_v4", "glm4", "", 7]),
    ("architectures", [["MixtralModel"], ["LlamaForCausalLM"], "x", []]),
]
GQA = [("head_dim", [9, 0, 1 << 21]), ("num_key_value_heads", [3, 8, 0])]
V3 = [("scoring_func", ["softmax", 1]), ("topk_method", ["greedy", "", 1]), ("moe_layer_freq", [2, 0]),
      ("n_routed_experts", [GONE, 0]), ("moe_intermediate_size", [GONE, 0]), ("intermediate_size", [GONE, 0]),
      ("n_group", [GONE, 0, 3 * 7, 1 << 20, "1"]), ("topk_group", [GONE, 0, 13, None]), ("norm_topk_prob", [1, "true"]),
      ("n_shared_experts", [-1, 1.5, 4096 * 100]), ("routed_scaling_factor", [0, -1, "4"]),
      ("first_k_dense_replace", [-1, 1.0]), ("num_nextn_predict_layers", [-1, "1", 1 << 20])]
QWEN = [("num_experts", [GONE, 0, 4097]), ("moe_intermediate_size", [GONE, 0]), ("intermediate_size", [GONE, 0]),
        ("norm_topk_prob", [1, "true"]), ("decoder_sparse_step", [0, -1, "1"]), ("mlp_only_layers", [[-1], ["1"], 1])]
GATED = GQA[:1] + [("linear_num_value_heads", [GONE, 0, 3, "4"]), ("linear_num_key_heads", [GONE, 0, 3]), ("linear_key_head_dim", [GONE, 0, 4097]),
         ("linear_value_head_dim", [GONE, 0]), ("linear_conv_kernel_dim", [GONE, 1, 65]), ("head_dim", [GONE, None]),
         ("num_key_value_heads", [3, 0]), ("attention_bias", [1]), ("attn_output_gate", [False, 1]), ("use_sliding_window", [True]),
         ("shared_expert_intermediate_size", [GONE, 0]), ("full_attention_interval", [0, 4, "3"]),
         ("layer_types", [["full_attention"], ["linear_attention"] * 3, ["full_attention"] * 2 + ["sliding_attention"], [1, 2, 3], {}])]
OWN = {
    "mixtral": GQA + [("attention_bias", [True, 1]), ("num_local_experts", [GONE, 0]), ("intermediate_size", [GONE, 0]),
                      ("sliding_window", [-1, "12"])],
    "qwen3_moe": GQA + QWEN + [("attention_bias", [1]), ("use_sliding_window", [1])],
    "qwen2_moe": GQA + QWEN + [("attention_bias", [True]), ("qkv_bias", [1]), ("shared_expert_intermediate_size", [GONE, 0]),
                               ("layer_types", [["full_attention"], ["full_attention"] * 2 + ["linear_attention"], [1, 2, 3],
                                                {}])],
    "olmoe": GQA + [("num_experts", [GONE, 0]), ("intermediate_size", [GONE, 0]), ("clip_qkv", [-1, 0, "1"]),
                    ("norm_topk_prob", [1]), ("attention_bias", ["no"])],
    "deepseek_v2": [("attention_bias", [True]), ("norm_topk_prob", [True]), ("scoring_func", ["sigmoid", 1]),
                    ("moe_layer_freq", [2, 0]), ("topk_method", ["noaux_tc", "", 1]), ("n_routed_experts", [GONE, 0]),
                    ("moe_intermediate_size", [GONE, 0]), ("intermediate_size", [GONE, 0]), ("kv_lora_rank", [GONE, 0, 4097]),
                    ("qk_nope_head_dim", [GONE, 0]), ("qk_rope_head_dim", [GONE, 0, 7]), ("v_head_dim", [GONE, 0]),
                    ("q_lora_rank", [0, -1]), ("n_group", [GONE, 0, 3, 9]), ("topk_group", [GONE, 0, 5, 1]),
                    ("n_shared_experts", [-1, 1.5, 4096 * 100]), ("routed_scaling_factor", [0, -1, "4"]),
                    ("first_k_dense_replace", [-1, 1.0])],
    "deepseek_v3": V3 + [("attention_bias", [True]), ("rope_interleave", [0, "no"]), ("kv_lora_rank", [GONE, 0, 4097]),
                         ("qk_nope_head_dim", [GONE, 0]), ("qk_rope_head_dim", [GONE, 0, 7]), ("v_head_dim", [GONE, 0]),
                         ("q_lora_rank", [0, -1]), ("n_group", [12, 5])],
    "glm4_moe": GQA + V3 + [("attention_bias", [1]), ("use_qk_norm", [1, "yes"]), ("n_group", [8, 3]),
                            ("partial_rotary_factor", [0, 0.3, 1.5, "0.5"])],
    "glm4_moe_lite": V3[:-2] + [
        ("attention_bias", [True]), ("rope_interleave", [0]), ("kv_lora_rank", [GONE, 0, 4097]), ("head_dim", [16, "8"]),
        ("qk_nope_head_dim", [GONE, 0]), ("qk_rope_head_dim", [GONE, 0, 7]), ("v_head_dim", [GONE, 0]),
        ("mlp_layer_types", [[], ["dense", "sparse"], ["dense", "sparse", "moe"], ["sparse"] * 4, [1, 1, 1], "sparse"]),
        ("num_nextn_predict_layers", [-1])],
    "gemma4": [("hidden_activation", ["gelu", "silu", "", 1]), ("hidden_act", ["silu"]), ("enable_moe_block", [GONE, False, 1]),
               ("hidden_size_per_layer_input", ["0", -1, 1 << 20]), ("num_kv_shared_layers", [3, 2, -1, "1"]),
               ("use_double_wide_mlp", [1]), ("attention_bias", [True]), ("use_bidirectional_attention", ["all", True]),
               ("num_experts", [GONE, 0, 4097]), ("moe_intermediate_size", [GONE, 0]), ("intermediate_size", [GONE, 0]),
               ("top_k_experts", [GONE, 0, 6, 2.0]), ("num_key_value_heads", [GONE, 0, 3, 8]), ("head_dim", [9, 0, 1 << 21]),
               ("global_head_dim", [9, 0, 1 << 21]), ("attention_k_eq_v", [1]), ("sliding_window", [0, -1, "8"]),
               ("final_logit_softcapping", [0, -1, "30"]),
               ("layer_types", [["full_attention"], ["full_attention"] * 2 + ["chunked_attention"], [1, 2, 3], {}]),
               ("rope_parameters", [dict(full_attention=o, sliding_attention=dict(rope_theta=1e4)) for o in (
                   None, 1, {}, dict(rope_theta=0), dict(rope_theta=1e4, rope_type="yarn", factor=4),
                   dict(PROPORTIONAL, partial_rotary_factor=0.01), dict(PROPORTIONAL, partial_rotary_factor=1.5),
                   dict(PROPORTIONAL, factor=0.5))]),
               ("per_layer_config", [1, {"3": {"head_dim": 8}}, {"0": {"head_dim": 8}}, {"1": {"head_dim": 0}},
                                     {"1": {"head_dim": 8, "sliding_window": 4}}])],
    "minimax_m2": [("head_dim", [GONE, None, 9, 0]), ("num_mtp_modules", [-1, "1"]), ("num_key_value_heads", [3, 8, 0]),
                   ("num_local_experts", [GONE, 0]),
                   ("intermediate_size", [GONE, 0]), ("rotary_dim", [0, 14, "8"]), ("attention_bias", [True]),
                   ("use_qk_norm", [False, 0]), ("use_routing_bias", [False]), ("scoring_func", ["softmax"]),
                   ("qk_norm_type", ["per_head"]), ("attn_type_list", [[1, 0], [7, 1], ["1"]]),
                   ("shared_intermediate_size", [16]), ("layernorm_full_attention_beta", [3.5]),
                   ("layernorm_mlp_beta", [0.5]), ("routed_scaling_factor", [2.5]), ("partial_rotary_factor", ["1", 2])],
    "phimoe": [("head_dim", [9, 0]), ("num_key_value_heads", [GONE, 3, 8, 0]), ("num_local_experts", [GONE, 0]),
               ("intermediate_size", [GONE, 0]), ("num_experts_per_tok", [1, 3]), ("attention_bias", [1]), ("lm_head_bias", [1]),
               ("router_jitter_noise", [-1, 2, "0.01"]), ("sliding_window", [-1, "12"]),
               ("original_max_position_embeddings", [15, 0, "14", dict(LONG, original_max_position_embeddings=GONE)]),
               ("rope_scaling", [YARN]),
               *(("short_factor", [dict(LONG, short_factor=x)]) for x in (GONE, 1, [1, 2, 3], [1, 2, 3, 0], [1, 2, 3, "4"])),
               *(("long_factor", [dict(LONG, long_factor=x)]) for x in (GONE, [], [1, 2, 3, -4], [1, 2, 3, 4, 5])),
               *(("mscale", [dict(LONG, **{k: x})]) for k in ("short_mscale", "long_mscale") for x in (GONE, -1, "1"))],
    "gpt_oss": [("head_dim", [GONE, None, 9, 0]), ("num_key_value_heads", [3, 8, 0]), ("num_local_experts", [GONE, 0]),
                ("intermediate_size", [GONE, 0]), ("sliding_window", [GONE, None, 0, -1, "5"]), ("attention_bias", [1, "yes"]),
                ("experts_per_token", [1, 3, "2"]), ("swiglu_limit", [0, -1, "7", 1e7]), ("swiglu_alpha", [1, 1.7, "1.702"]),
                ("layer_types", [[], ["full_attention"], ["full_attention"] * 3, ["full_attention", "linear_attention"],
                                 ["full_attention", 1], "full_attention", {}]),
                ("rope_parameters", [None, GONE, dict(YARN, rope_theta=1e4, truncate=1)]),
                ("quantization_config", [dict(quant_method="mxfp4", group_size=16), dict(quant_method="mxfp8"), {}, 1])],
    "qwen3_next": GATED + QWEN + [("partial_rotary_factor", [0, 0.2, 1.5, "0.5"])],
    "qwen3_5_moe": GATED + QWEN[:2] + [("norm_topk_prob", [False, 1]), ("rope_parameters", [1, dict(rope_theta=1e4, rope_type="su"),
                                                                       dict(rope_theta=1e4, partial_rotary_factor=0.2)])],
}
# What these families read, where others must not have it: settings of EVERYWHERE that are theirs to refuse, or not.
READ = {"glm4_moe": ("use_qk_norm", "partial_rotary_factor"), "minimax_m2": ("use_qk_norm", "partial_rotary_factor"),
        "mixtral": ("sliding_window",), "qwen3_moe": ("sliding_window", "use_qk_norm"), "olmoe": ("use_qk_norm",), "qwen2_moe": ("sliding_window", "layer_types"),
        "gemma4": ("hidden_act", "final_logit_softcapping", "rope_theta", "num_experts_per_tok", "sliding_window", "layer_types"),
        "phimoe": ("sliding_window", "lm_head_bias"),
        "gpt_oss": ("swiglu_limit", "rope_theta", "sliding_window", "layer_types"),
        "qwen3_next": ("partial_rotary_factor", "sliding_window", "layer_types", "use_qk_norm"),
        "qwen3_5_moe": ("partial_rotary_factor", "sliding_window", "layer_types", "rope_theta", "rope_scaling", "use_qk_norm")}


def test_bad_configs():
    """Settings that change numbers and are not implemented, or make no sense: refused by the name of the field."""
    n = 0
    for family, name in FAMILIES.items():
        _, cfg, tens = golden(name)
        tc.write_checkpoint(at("bad"), cfg, tens)
        for key, values in EVERYWHERE + OWN[family]:
            for value in values:
                field, value = key, with_fields(value) if isinstance(value, dict) else value
                if isinstance(value, dict) and value.get("type") == "longrope" and family == "phimoe":
                    field = "rope_scaling"
                inside = isinstance(value, dict) and "partial_rotary_factor" in value
                reads = READ.get(family, ())
                if (family, field, value) == ("olmoe", "rms_norm_eps", GONE):
                    continue
                if inside and "partial_rotary_factor" in reads or key in reads and (key, values) in EVERYWHERE:
                    continue
                write(json.dumps(with_fields(cfg, **{field: value})).encode(), at("bad"), "config.json")
                unknown = key in ("model_type", "architectures") and value not in ("x", [], 7)
                nothing_is_made("config.json", "no known model family" if unknown else key)
                n += 1
        shutil.rmtree(at("bad"))
    assert n > 450, n


def test_neutral_settings():
    """Values that change nothing are taken, so what is refused above is refused for its value."""
    everywhere = dict(mlp_bias=False, lm_head_bias=None, use_qk_norm=False, partial_rotary_factor=1.0, embedding_multiplier=1,
                      residual_multiplier=1.0, logits_scaling=1, logit_scale=None, attn_logit_softcapping=0,
                      final_logit_softcapping=None, swiglu_limit=0.0, layer_types=None)
    own = {"mixtral": dict(attention_bias=False, rope_scaling={"type": "default"}),
           "qwen3_moe": dict(attention_bias=None, hidden_act=GONE, use_qk_norm=True, qkv_bias=False, shared_expert_intermediate_size=0),
           "qwen2_moe": dict(attention_bias=False, qkv_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
           "olmoe": dict(attention_bias=False, hidden_act=None, use_qk_norm=True),
           "deepseek_v2": dict(attention_bias=False, norm_topk_prob=None, scoring_func=GONE, moe_layer_freq=None),
           "deepseek_v3": dict(attention_bias=None, rope_interleave=True, scoring_func=GONE, topk_method=GONE,
                               norm_topk_prob=GONE, routed_scaling_factor=None, n_shared_experts=GONE),
           "glm4_moe": dict(use_qk_norm=GONE, partial_rotary_factor=GONE, norm_topk_prob=GONE, routed_scaling_factor=GONE,
                            scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, first_k_dense_replace=None),
           "glm4_moe_lite": dict(attention_bias=None, rope_interleave=True, scoring_func=GONE, topk_method=GONE, head_dim=8,
                                 norm_topk_prob=GONE, routed_scaling_factor=None, n_shared_experts=GONE, moe_layer_freq=None),
           "minimax_m2": dict(use_qk_norm=True, partial_rotary_factor=8 / 12, scoring_func=GONE, attn_type_list=[1, 1, 1],
                              layernorm_full_attention_beta=1.0, layernorm_linear_attention_beta=9.0, layernorm_mlp_beta=1,
                              sliding_window=GONE, mlp_intermediate_size=99, use_mtp=False, num_mtp_modules=0),
           "gemma4": dict(hidden_act="gelu_pytorch_tanh", hidden_activation=None, num_kv_shared_layers=None, rope_theta=7,
                          use_double_wide_mlp=None, attention_bias=None, use_bidirectional_attention=None,
                          vocab_size_per_layer_input=GONE, num_global_key_value_heads=4, num_experts_per_tok=1, per_layer_config=None,
                          layer_types=["full_attention", "sliding_attention", "full_attention"]),
           "phimoe": dict(hidden_act=None, lm_head_bias=True, input_jitter_noise=0.5, original_max_position_embeddings=GONE,
                          sliding_window=999),
           "gpt_oss": dict(layer_types=["full_attention", "sliding_attention"], swiglu_limit=1.0, swiglu_alpha=1.702, experts_per_token=2, initial_context_length=99, attention_bias=GONE,
                           rope_theta=150000, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])),
           "qwen3_next": dict(use_qk_norm=True, attention_bias=None, use_sliding_window=None, sliding_window=7, attn_output_gate=True, partial_rotary_factor=0.5,
                              layer_types=["linear_attention", "linear_attention", "full_attention"], norm_topk_prob=GONE),
           "qwen3_5_moe": dict(use_qk_norm=True, attn_output_gate=GONE, output_gate_type="swish", full_attention_interval=GONE, partial_rotary_factor=0.5, norm_topk_prob=True,
                               layer_types=["linear_attention", "linear_attention", "full_attention"], mlp_only_layers=[1])}
    for family, name in FAMILIES.items():
        path, cfg, tens = golden(name)
        want = json.loads(read(golden_pack(name), "model.json"))["fingerprint"]
        tc.write_checkpoint(at("neutral"), with_fields(cfg, **dict(everywhere, **own[family])), tens)
        shutil.copy(os.path.join(path, "tokenizer.json"), at("neutral"))
        good(at("neutral"), at("neutral.pack"), "--shadow", "none", "--force")
        assert json.loads(read(at("neutral.pack"), "model.json"))["fingerprint"] == want, family


def test_gemma_inputs_and_shared_kv():
    """Keys and values that a layer does not use are left out, their absence is refused where they are used."""
    _, cfg, tens = golden("gemma4_shared_kv")
    want = packed("shared", cfg, tens)
    more = {"model.layers.%d.self_attn.%s.weight" % (i, n): ("F16", [2, 3], bytes(12)) for i in (3, 4) for n in ("k_proj", "v_proj", "k_norm")}
    again = packed("shared", cfg, {**tens, **more})
    assert again.fingerprint() == want.fingerprint() and not set(more) & set(again.tensors)
    for name in ("model.layers.2.self_attn.k_proj.weight", "model.layers.2.self_attn.k_norm.weight"):  # an own one
        tc.write_checkpoint(at("bad"), cfg, {k: v for k, v in tens.items() if k != name})
        nothing_is_made(name)
    tc.write_checkpoint(at("bad"), dict(cfg, num_kv_shared_layers=1), tens)
    nothing_is_made("model.layers.3.self_attn.k_")
    tc.write_checkpoint(at("bad"), dict(cfg, hidden_size_per_layer_input=0), tens)
    nothing_is_made("per_layer")
    for value in (GONE, 295, 297):
        tc.write_checkpoint(at("bad"), with_fields(cfg, vocab_size_per_layer_input=value), tens)
        nothing_is_made("config.json", "vocab_size_per_layer_input")
    shutil.rmtree(at("bad"))


def test_no_moe_layer():
    for name, fields in (("qwen3_moe_plain", dict(mlp_only_layers=[0, 1, 2])), ("qwen3_moe_plain", dict(decoder_sparse_step=4)),
                         ("qwen2_moe_plain", dict(mlp_only_layers=[2, 1, 0])),
                         ("deepseek_v2_lite", dict(first_k_dense_replace=3)), ("glm4_moe_air", dict(first_k_dense_replace=3)),
                         ("deepseek_v2_lite", dict(first_k_dense_replace=1000))):
        cfg = with_fields(golden(name)[1], **fields)
        tc.write_checkpoint(at("bad"), cfg, tc.tensors(cfg))
        nothing_is_made("config.json", "none of the 3 layers has routed experts")


def test_families_are_told_apart():
    """A family's tensors under another family's configuration, and a configuration that names two families."""
    for family, name in FAMILIES.items():
        for other, source in FAMILIES.items():
            if other != family:
                tc.write_checkpoint(at("bad"), golden(name)[1], golden(source)[2])
                nothing_is_made("tensor ")
                shutil.rmtree(at("bad"))
    _, cfg, tens = golden("mixtral_top3")
    for family in FAMILIES:
        if family != "mixtral":
            tc.write_checkpoint(at("bad"), dict(cfg, model_type=family), tens)
            nothing_is_made("no known model family", "MixtralForCausalLM", '"%s"' % family, "known: mixtral", "deepseek_v2")


def test_forged_configs():
    """A config.json that does not fit the pack around it, with sums made to fit: shapes and layers are held to the tables,
    the rest to the fingerprint."""
    for name, shapes, numbers in (
            ("deepseek_v2_groups", [dict(first_k_dense_replace=1), dict(n_shared_experts=2), dict(q_lora_rank=None),
                                    dict(kv_lora_rank=8), dict(v_head_dim=8), dict(n_routed_experts=16),
                                    dict(num_hidden_layers=4)],
             [dict(topk_group=3), dict(routed_scaling_factor=2.0), dict(rope_scaling=None)]),
            ("deepseek_v3_groups", [dict(first_k_dense_replace=2), dict(n_shared_experts=2), dict(n_routed_experts=8)],
             [dict(topk_group=3), dict(norm_topk_prob=False), dict(n_group=2)]),
            ("glm4_moe_norms", [dict(use_qk_norm=False), dict(attention_bias=True), dict(first_k_dense_replace=1)],
             [dict(topk_group=4), dict(rope_parameters=dict(rope_theta=500.0, partial_rotary_factor=0.5))]),
            ("qwen3_moe_mlp_only", [dict(mlp_only_layers=[0, 1]), dict(mlp_only_layers=[1, 3]), dict(attention_bias=True),
                                    dict(head_dim=8), dict(moe_intermediate_size=8)], [dict(norm_topk_prob=False)]),
            ("qwen2_moe_norm", [dict(qkv_bias=False), dict(shared_expert_intermediate_size=24), dict(mlp_only_layers=[])],
             [dict(norm_topk_prob=False)]),
            ("gpt_oss_mxfp4", [dict(attention_bias=False), dict(num_local_experts=5), dict(head_dim=12), dict(intermediate_size=64)],
             [dict(swiglu_limit=6.0), dict(sliding_window=9), dict(layer_types=["full_attention"] * 2)]),
            ("qwen3_next_plain", [dict(full_attention_interval=2), dict(linear_num_key_heads=4), dict(linear_conv_kernel_dim=3),
                                  dict(attention_bias=True)], [dict(norm_topk_prob=False), dict(partial_rotary_factor=0.25)]),
            ("olmoe_clip", [dict(attention_bias=True), dict(num_key_value_heads=4)],
             [dict(clip_qkv=1.0), dict(clip_qkv=None)])):
        cfg = golden(name)[1]
        for fields in shapes + numbers:
            shutil.rmtree(at("forged.pack"), ignore_errors=True)
            shutil.copytree(golden_pack(name), at("forged.pack"))
            write(json.dumps(dict(cfg, **fields)).encode(), at("forged.pack"), "config.json")
            resum(at("forged.pack"))
            p = refused("verify", at("forged.pack"), says=["fingerprint"] if fields in numbers else [])
            assert fields in numbers or "model.json" in p.stderr or "experts.bin" in p.stderr, (fields, p.stderr)
            if fields in numbers:
                good("info", at("forged.pack"))
            else:
                refused("info", at("forged.pack"))
            try:
                pack = pr.Pack(at("forged.pack"))
                assert fields in numbers and pack.fingerprint() != pack.model["fingerprint"], fields
            except pr.Bad:
                assert fields in shapes, fields


run_tests(globals())

"""What transformers computes of a checkpoint, with the routers' choices: float32, eager attention, one thread, greedy."""
import copy
import json
import os
import warnings

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from checkpoint import of_family
from families import FAMILIES

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore", message="Initializing zero-element tensors")  # no shared experts


def read_config(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def options():
    return dict(attn_implementation="eager", experts_implementation="eager")


def load(path, dtype=torch.float32):
    cfg = read_config(path)
    family = FAMILIES[cfg["model_type"]]
    of_family(family, "prepare", lambda: None)()
    more = of_family(family, "load_options", dict)() if cfg.get("quantization_config") else {}
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True, **options(), **more)
    model = model.to(dtype)
    behind = f"model.layers.{model.config.num_hidden_layers}."  # of layers that predict further tokens: not used
    info["unexpected_keys"] = [k for k in info["unexpected_keys"] if not k.startswith((behind, "mtp."))]
    empty = {k for k, t in model.state_dict().items() if t.numel() == 0}  # shared experts where there are none
    info["missing_keys"] = set(info["missing_keys"]) - empty
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def with_other(path, model, fields):
    """The same weights under another configuration."""
    cfg = read_config(path) | fields
    cfg.pop("quantization_config", None)  # the weights are no longer
    other = AutoConfig.for_model(**copy.deepcopy(cfg))
    other.torch_dtype = torch.float32
    changed = AutoModelForCausalLM.from_config(other, dtype=torch.float32, **options())
    changed.load_state_dict(model.state_dict())
    return changed.eval()


# ---- routers ----

def scores(cfg, logits, bias, router):
    """What a router chooses by, and per row the gap between the groups kept and the next (1: no groups). bias: of routers by
    sigmoids."""
    s, gap = logits.float().softmax(-1) if bias is None else logits.float().sigmoid() + bias, torch.ones(len(logits))
    if cfg.get("topk_method") == "group_limited_greedy" or bias is not None and cfg.get("n_group", 1) > 1:
        groups = s.view(len(s), cfg["n_group"], -1)
        ranked = groups.topk(1 if bias is None else 2).values.sum(-1).sort(dim=-1, descending=True)
        k = cfg["topk_group"]
        if k < cfg["n_group"]:
            gap = ranked.values[:, k - 1] - ranked.values[:, k]
        keep = torch.zeros(groups.shape[:2]).scatter(1, ranked.indices[:, :k], 1.0).bool()
        s = torch.where(keep[:, :, None], groups, 0.0 if bias is None else -torch.inf).reshape(len(s), -1)
    return s, gap


def bias_of(router, args):
    """Of a router by sigmoids; in MiniMax-M2 it gets it with each call."""
    return args[1] if len(args) > 1 else getattr(router, "e_score_correction_bias", None)


class Routes:
    """Hooks on the routers: what the last pass chose, by layer. floor: the least gap since it was set to 1; margin: the least
    between the last expert chosen and the next."""

    def __init__(self, model, cfg):
        self.cfg, self.last, self.floor, self.margin = cfg, {}, 1.0, 1.0
        self.scores = of_family(FAMILIES[cfg["model_type"]], "scores", scores)
        for name, module in model.named_modules():
            if type(module).__name__.lower().endswith(("topkrouter", "textrouter")):
                layer = int(name.split("layers.")[1].split(".")[0])
                module.register_forward_hook(lambda mod, args, out, layer=layer: self.call(layer, out, bias_of(mod, args), mod))

    def call(self, layer, out, bias, router):
        logits, weights, experts = out
        s, gap = self.scores(self.cfg, logits, bias, router)
        k = experts.shape[1]
        ranked = s.sort(dim=-1, descending=True, stable=True)
        order = s.gather(1, experts).argsort(dim=-1, descending=True, stable=True)
        experts, weights = experts.gather(1, order), weights.gather(1, order)
        below = torch.nn.functional.pad(ranked.values[:, 1:k + 1], (0, max(k + 1 - ranked.values.shape[1], 0)), value=-torch.inf)
        gaps = (ranked.values[:, :k] - below).nan_to_num(1.0)  # no further expert, or none in these groups: no tie
        assert (experts == ranked.indices[:, :k]).all() or gaps.min() < 1e-6
        margin = torch.minimum(gaps[:, -1], gap).clamp(max=1.0)
        self.floor, self.margin = min(self.floor, margin.min().item(), gaps.min().item()), min(self.margin, margin.min().item())
        self.last[layer] = experts.tolist(), [[number(x, 7) for x in row] for row in weights.tolist()], \
            [number(x) for x in margin.tolist()]

    def rows(self, n_layers):
        """[layer] (experts, weights, margins) of each row; a dense layer has none, and margin 1."""
        n = len(next(iter(self.last.values()))[0])
        dense = [[] for _ in range(n)], [[] for _ in range(n)], [1.0] * n
        return [self.last.get(i, dense) for i in range(n_layers)]


def number(x, digits=6):
    return float(f"{min(x, 1e30):.{digits}g}")


# ---- runs ----

def border(model):
    """With long RoPE, the length up to which a text has the short factors; a text that becomes longer is computed anew."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    return rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else float("inf")


@torch.no_grad()
def generate(model, routes, ids, tokens):
    """Greedy with a cache: the golden entry, the least margins, prompt logits, decode logits, hidden states."""
    n = model.config.num_hidden_layers
    routes.floor = routes.margin = 1.0
    out = model(torch.tensor([ids]), use_cache=True, output_hidden_states=True)
    prompt = routes.rows(n)
    e = dict(prompt_ids=ids, greedy_ids=[], margins=[])
    for k, field in enumerate(("routes", "route_weight", "route_margin")):
        e[field + "_prefill"], e[field + "_decode"] = [layer[k] for layer in prompt], []
    logits, hidden, row, rows = out.logits[0], torch.stack(out.hidden_states)[:, 0], out.logits[0, -1], []
    for i in range(tokens):
        two = row.topk(2)
        rows.append(row)
        e["greedy_ids"].append(two.indices[0].item())
        e["margins"].append(number((two.values[0] - two.values[1]).item()))
        if i + 1 < tokens:
            text = ids + e["greedy_ids"]
            anew = len(text) == border(model) + 1
            out = model(torch.tensor([text if anew else text[-1:]]), past_key_values=None if anew else out.past_key_values,
                        use_cache=True)
            row, step = out.logits[0, -1], routes.rows(n)
            for k, field in enumerate(("routes", "route_weight", "route_margin")):
                e[field + "_decode"].append([layer[k][-1] for layer in step])
    return e, (routes.floor, min(e["margins"])), logits.numpy(), torch.stack(rows).numpy(), hidden.numpy()


@torch.no_grad()
def whole(model, ids, n_prompt=None):
    """Logits in one pass; in two if the text, which grew from n_prompt tokens, was computed anew at its border."""
    rows = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    if n_prompt is None or not n_prompt <= border(model) < len(ids):
        return rows
    return np.concatenate((whole(model, ids[:border(model)]), rows[border(model):]))


def write_entry(path, name, text, tolerance, found, fields, tokenizer):
    """The golden entry of a generated text, and the files of those fields (logits, decode_logits, hidden)."""
    e, _, logits, rows, hidden = found
    entry = dict(name=name, prompt_text=text, logit_tolerance=tolerance, **e,
                 greedy_text=tokenizer.decode(e["greedy_ids"], skip_special_tokens=False))
    for field, a in dict(logits=logits, decode_logits=rows, hidden=hidden).items():
        if field in fields:
            file = f"{field}_{name}.f32"
            np.asarray(a).astype("<f4").tofile(os.path.join(path, file))
            entry |= {field + "_file": file, field + "_shape": list(a.shape)}
    return entry

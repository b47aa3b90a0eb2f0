#!/usr/bin/env python3
"""Recall of each text alone and among others: a text's predictions must not depend on who joins or leaves the steps.

    recall_together.py --bin DIR --pack PACK [--precision int8,nf4] [--texts 48] [--parallel 16] [--workers 2] [--rounds 3]
                       [--load-ms 0] [--seed 5]

Texts of other lengths, so that some end and others begin at almost every step; half of them greedy, half sampled. Tokens must be
equal. Each line has, for all texts together, the recall alone and among others, and the largest difference of one text, in points;
then the rows of a layer without a prediction (missing) and those whose prediction came after the router (late), in percent."""
import argparse
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile

WORDS = ("Once upon a time there was a king who had three sons and the youngest of them went out into the wood to look for the "
         "golden bird that no one had seen before").split()


def write_texts(path, n, seed):
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as f:
        for i in range(n):
            prompt = " ".join(rng.choice(WORDS) for _ in range(rng.choice([3, 5, 9, 17, 40, 70, 130])))
            f.write(json.dumps({"prompt": prompt, "max_tokens": rng.randint(60, 140), "temperature": rng.choice([0, 0.8]),
                                "seed": i}) + "\n")


def touch_memory(mib):
    """A hypervisor may have to find memory that its guest has not used for some seconds, which takes 20 times as long as zeroing
    it. The shadow would lag for half a second. So all runs get memory that was just in use."""
    memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for i in range(0, len(memory), 4096):
        memory[i] = 1
    memory.close()


def texts_of(args, path, precision, parallel):
    touch_memory(2048)
    command = [os.path.join(args.bin, "od-main"), "--pack", args.pack, "--local", str(args.workers), "--prompts", path, "--parallel",
               str(parallel), "--draft", "off", "--json", "--quiet", "--ignore-eos", f"--shadow-arg=--precision={precision}"]
    if args.load_ms > 0:
        command.append(f"--worker-arg=--load-time={args.load_ms}")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return {x["index"]: x for x in map(json.loads, done.stdout.splitlines())}


def recall_of(texts):
    return 100 * sum(x["recalled_uses"] for x in texts) / max(1, sum(x["predicted_uses"] for x in texts))


def percent(texts, name, rows):
    return 100 * sum(x[name] for x in texts.values()) / rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--precision", default="int8,nf4")
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load-ms", type=float, default=0,
                        help="pace loads, so that main is no faster than a shadow that has few cores (0: no pacing)")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "texts.jsonl")
        write_texts(path, args.texts, args.seed)
        for precision in args.precision.split(","):
            alone = texts_of(args, path, precision, 1)
            rows = sum(x["decode_layers"] for x in alone.values())
            for _ in range(args.rounds):
                both = texts_of(args, path, precision, args.parallel)
                if any(alone[i]["token_ids"] != both[i]["token_ids"] for i in alone):
                    sys.exit("a text has other tokens among others than alone")
                apart = max(abs(recall_of([both[i]]) - recall_of([alone[i]])) for i in alone)
                print(f"{precision:5} alone {recall_of(alone.values()):.3f}, together {recall_of(both.values()):.3f}, a text at most "
                      f"{apart:.3f} apart; missing {percent(both, 'missing_predictions', rows):.2f} % (alone "
                      f"{percent(alone, 'missing_predictions', rows):.2f}), late {percent(both, 'late_predictions', rows):.2f} % "
                      f"({percent(alone, 'late_predictions', rows):.2f})", flush=True)


if __name__ == "__main__":
    main()

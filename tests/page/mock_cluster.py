"""States and steps of a cluster that there is not, as od-main tells them (GET /cluster/events). All is drawn from a seed."""
import random

LAYERS, TOP_K = 24, 8


class MockCluster:
    def __init__(self, workers=2, texts=1, seed=1):
        self.random = random.Random(seed)
        self.n_workers = workers
        self.texts = texts
        self.seconds = 100.0
        self.step = 1000
        self.counters = dict.fromkeys(("tokens", "prompt_tokens", "expert_uses", "predicted_uses", "recalled_uses", "ready_uses", "decode_steps",
                                       "drafted_tokens", "accepted_tokens", "stall_seconds", "loads", "load_seconds", "loaded_bytes"), 0)
        self.lost = {}  # id: (problem, remedy)

    def machine(self, n, role, **fields):
        m = {"id": n, "role": role, "name": f"10.0.0.{n + 2}:570{1 if role == 'worker' else 3}", "host": f"box{n + 1}", "state": "serving",
             "memory_bytes": 5_100_000_000 + 7_000_000 * n, "memory_peak_bytes": 6_000_000_000, "holds": {"experts": None, "cached": 0, "slots": 0},
             "layers": None, "precision": "", "counters": {}, "problem": "", "remedy": "", **fields}
        if n in self.lost:
            m["problem"], m["remedy"] = self.lost[n]
            m["state"] = "lost"
        return m

    def machines(self):
        c = self.counters
        main = self.machine(-1, "main", name="", host="den", memory_bytes=3_200_000_000)
        shadow = self.machine(0, "shadow", host="nook", precision="int8", layers=[0, LAYERS])
        workers = [self.machine(i, "worker", holds={"experts": 3072 // self.n_workers, "cached": 0, "slots": 16},
                                counters={"loads": c["loads"] // self.n_workers, "load_seconds": c["load_seconds"] / self.n_workers})
                   for i in range(1, self.n_workers + 1)]
        return [main, shadow, *workers]

    def state(self):
        return {"model": {"name": "qwen3-30b-a3b", "family": "qwen3_moe", "layers": LAYERS, "moe_layers": LAYERS, "experts": 128, "top_k": TOP_K,
                          "profile": "f32"},
                "version": "0.2.0", "uptime_seconds": self.seconds, "ready": True, "problem": "", "remedy": "", "mode": "cluster",
                "queue": {"running": self.texts, "waiting": max(0, self.texts - 8), "limit": 64, "parallel": 8}, "counters": dict(self.counters),
                "machines": self.machines()}

    def second(self):
        """Time goes on. The new state."""
        r, c = self.random, self.counters
        tokens = self.texts * r.randint(5, 9)
        uses = tokens * LAYERS * TOP_K
        self.seconds += 1
        c["tokens"] += tokens
        c["decode_steps"] += tokens
        c["expert_uses"] += uses
        c["predicted_uses"] += uses
        c["recalled_uses"] += int(uses * r.uniform(0.93, 0.98))
        c["ready_uses"] += int(uses * r.uniform(0.82, 0.95))
        c["loads"] += uses
        c["load_seconds"] += uses * 0.0021
        return self.state()

    def next_step(self):
        """A step as `event: steps` has it."""
        r, at, main, shadow, workers = self.random, 0, [], [], []
        for m in range(LAYERS):
            took = r.randint(500, 900)
            main.append(["attention", m, at, took])
            at += took
            shadow.append([m, at - r.randint(1500, 6000), right := r.randint(6, 8), TOP_K - right])
            main.append(["send", m, at, 60])
            last = at
            for w in r.sample(range(1, self.n_workers + 1), min(self.n_workers, TOP_K)):
                load, compute = r.choice([0, 0, 1200, 2500]), r.randint(300, 700)
                answered = at + 100 + compute + load // 2 + r.randint(0, 300)
                if w not in self.lost:
                    workers.append([w, m, at, answered, load, load // 4, compute, max(1, TOP_K // self.n_workers), r.randint(0, 2)])
                    last = max(last, answered)
            main.append(["wait", m, at + 60, last - at])
            at = last + 60
        main.append(["head", LAYERS, at, 1500])
        self.step += 1
        return {"step": self.step, "kind": "decode", "at_us": int(self.seconds * 1e6), "us": at + 1500, "rows": self.texts, "texts": self.texts,
                "drafted": 4, "accepted": r.randint(0, 4), "main": main, "shadow": shadow, "workers": workers}

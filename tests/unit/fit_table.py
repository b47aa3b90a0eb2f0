"""Writes fit_table.h: points and what numpy fits to them, for test_check_fit.c. Run it here: /usr/bin/python3 fit_table.py"""
import numpy as np

rng = np.random.default_rng(50)


def theil_sen(x, y):
    i, j = np.triu_indices(len(x), 1)
    use = x[i] != x[j]
    slopes = np.sort((y[j] - y[i])[use] / (x[j] - x[i])[use])
    slope = slopes[(len(slopes) - 1) // 2]
    rest = np.sort(y - slope * x)
    return rest[(len(rest) - 1) // 2], slope


def model(p, x):
    operations, weights, rows = p[:, 0], p[:, 1], p[:, 2]
    return operations * x[0] + np.maximum(weights * x[1], weights * rows * x[2])


def roofline(p, t):
    """Every split of the rows, with and without a fixed time, by least squares of relative errors."""
    most, best = p[:, 2].max(), (np.inf, None)
    for flat in {0.0, *p[:, 2]}:
        few = p[:, 2] <= flat
        columns = [p[:, 0], np.where(few, p[:, 1], 0), np.where(few, 0, p[:, 1] * p[:, 2])]
        for fixed in (True, False):
            use = [k for k in range(3) if np.any(columns[k]) and (k > 0 or fixed)]
            a = np.stack([columns[k] / t for k in use], axis=1)
            if np.linalg.matrix_rank(a) < len(use):
                continue
            x = np.zeros(3)
            x[use] = np.linalg.lstsq(a, np.ones(len(t)), rcond=None)[0]
            if 1 not in use:
                x[1] = x[2]
            if 2 not in use:
                x[2] = x[1] / most
            if x[0] < 0 or x[1] <= 0 or x[2] <= 0:
                continue
            error = np.sum((model(p, x) / t - 1) ** 2)
            if error < best[0]:
                best = error, x
    return best[1]


def number(v):
    return repr(float(v))


lines, fits = [], []
for _ in range(6):
    n = int(rng.integers(3, 12))
    x = rng.uniform(0, 100, n).round(3)
    y = (rng.uniform(-5, 5) + rng.uniform(0.1, 3) * x + rng.normal(0, 2, n)).round(4)
    y[rng.integers(0, n)] += 1000
    lines.append((x, y, *theil_sen(x, y)))
for case in range(12):
    weights, speed = 10 ** rng.uniform(5, 8.5), 10 ** rng.uniform(8, 10.5)
    many, fixed = speed * rng.uniform(1, 40), (0 if case % 3 == 0 else 10 ** rng.uniform(-6, -4))
    rows = [1, 2, 4, 16, 64, 128][:int(rng.integers(3, 7))]
    p = np.array([[1, weights, r] for r in rows] + [[1, k * weights, 1] for k in ([2, 4] if case % 4 else [])] +
                 ([[0, weights * 5, 1]] if case % 2 else []))
    t = model(p, (fixed, 1 / speed, 1 / many)) * rng.normal(1, 0.03, len(p))
    t = np.round(t * 1e9, 3) / 1e9
    x = roofline(p, t)
    fits.append((p, t * 1e9, x[0] * 1e9, 1 / x[1], 1 / x[2]))

with open("fit_table.h", "w") as f:
    f.write("/* Made by fit_table.py. */\n")
    f.write("static const struct {\n\tsize_t n;\n\tdouble x[12], y[12], at_0, slope;\n} line_table[] = {\n")
    for x, y, at_0, slope in lines:
        f.write("\t{ %d,\n\t  { %s },\n\t  { %s },\n\t  %s,\n\t  %s },\n" % (
            len(x), ", ".join(map(number, x)), ", ".join(map(number, y)), number(at_0), number(slope)))
    f.write("};\n\nstatic const struct {\n\tsize_t n;\n\tstruct odp_timed point[12];\n\tdouble fixed_ns, speed, many;\n} roofline_table[] = {\n")
    for p, t, fixed, speed, many in fits:
        points = ", ".join("{ %s }" % ", ".join(map(number, [*row, ns])) for row, ns in zip(p, t))
        f.write("\t{ %d, { %s }, %s, %s, %s },\n" % (len(p), points, number(fixed), number(speed), number(many)))
    f.write("};\n")

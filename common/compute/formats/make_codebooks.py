#!/usr/bin/env python3
"""Writes common/compute/formats/codebook_data.h: the codebooks of GGUF's IQ formats, from the package gguf (pip install gguf).

    common/compute/formats/make_codebooks.py >common/compute/formats/codebook_data.h

The numbers are data of these formats: files cannot be read without them."""
import importlib.metadata

import gguf.quants as quants

TABLES = [("iq2_xxs", quants.IQ2_XXS, 8), ("iq2_xs", quants.IQ2_XS, 8), ("iq2_s", quants.IQ2_S, 8), ("iq1_s", quants.IQ1_S, 8),
          ("iq3_xxs", quants.IQ3_XXS, 4), ("iq3_s", quants.IQ3_S, 4)]

licence = next((f.read_text() for f in importlib.metadata.files("gguf") if f.name.upper().startswith("LICENSE")), None)
print(f"""/* codebook_data.h - the codebooks of GGUF's IQ formats (codebooks.h), as arrays of whatever kind OD_CODEBOOK declares.
 * Written by make_codebooks.py from the package gguf {importlib.metadata.version("gguf")} of the llama.cpp project; not to be edited.
 *
 * The numbers are those of llama.cpp, under this licence:
 *""")
for line in licence.strip().splitlines():
    print(f" * {line}".rstrip())
print(" */")
for name, cls, n in TABLES:
    cls.init_grid()
    entries = [sum((int(v) & 255) << 8 * i for i, v in enumerate(row)) for row in cls.grid.reshape(-1, n)]
    print(f"OD_CODEBOOK(uint{8 * n}_t, od_{name}_grid, {len(entries)}) = {{")
    each = 5 if n == 8 else 9
    for i in range(0, len(entries), each):
        print("\t" + " ".join(f"0x{e:0{2 * n}x}," for e in entries[i:i + each]))
    print("};")

#include "tests/unit/tiny_files.h"

#include <ftw.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char config[] =
	"{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_size\":32,"
	"\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
	"\"vocab_size\":80,\"num_local_experts\":3,\"num_experts_per_tok\":2,\"max_position_embeddings\":64,"
	"\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

static const char tokenizer[] =
	"{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";

static uint32_t rng_state = 2463534242u;

static uint32_t rnd(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 17;
	rng_state ^= rng_state << 5;
	return rng_state;
}

void tiny_write(const char *dir, const char *name, const void *data, size_t len)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
		perror(path);
		abort();
	}
}

/* Finite values whose exponents vary, as bits. */
static void fill(struct tiny_tensor *t)
{
	size_t n = t->n_out * (t->n_in > 0 ? t->n_in : 1), each = strcmp(t->dtype, "F32") == 0 ? 4 : 2;

	t->bytes = n * each;
	t->data = malloc(t->bytes);
	for (size_t i = 0; i < n; i++) {
		uint32_t sign = rnd() << 31, exponent = 118u + rnd() % 10u, mantissa = rnd() >> 9;
		uint32_t f32 = sign | exponent << 23 | mantissa;
		uint16_t half = strcmp(t->dtype, "F16") == 0 ?
					(uint16_t)(sign >> 16 | (exponent - 112u) << 10 | mantissa >> 13) :
					(uint16_t)(f32 >> 16);

		memcpy(t->data + i * each, each == 4 ? (void *)&f32 : (void *)&half, each);
	}
}

double tiny_weight(const struct tiny_tensor *t, size_t i)
{
	uint16_t half;
	uint32_t bits;
	float f;

	if (strcmp(t->dtype, "F32") == 0) {
		memcpy(&f, t->data + i * 4, 4);
		return (double)f;
	}
	memcpy(&half, t->data + i * 2, 2);
	if (strcmp(t->dtype, "F16") == 0) {
		double v = ldexp(1.0 + (half & 0x3ff) / 1024.0, (half >> 10 & 31) - 15);

		return half & 0x8000 ? -v : v;
	}
	bits = (uint32_t)half << 16;
	memcpy(&f, &bits, 4);
	return (double)f;
}

static void add(struct tiny_files *t, const char *name, uint64_t n_out, uint64_t n_in)
{
	static const char *const dtypes[] = { "BF16", "F16", "F32" };
	struct tiny_tensor *x = &t->tensor[t->n];

	snprintf(x->name, sizeof(x->name), "%s.weight", name);
	x->dtype = dtypes[t->n % 3];
	x->n_out = n_out;
	x->n_in = n_in;
	fill(x);
	t->n++;
}

static void add_random(struct tiny_files *t, const char *name, const char *end, const char *dtype, uint64_t n_out,
		       uint64_t n_in, size_t each)
{
	struct tiny_tensor *x = &t->tensor[t->n++];

	snprintf(x->name, sizeof(x->name), "%s.%s", name, end);
	x->dtype = dtype;
	x->n_out = n_out;
	x->n_in = n_in;
	x->bytes = n_out * (n_in > 0 ? n_in : 1) * each;
	x->data = malloc(x->bytes);
	for (size_t i = 0; i < x->bytes; i++)
		x->data[i] = (uint8_t)rnd();
}

static void add_scaled(struct tiny_files *t, const char *name, uint64_t n_out, uint64_t n_in, int way)
{
	switch (way % 4) {
	case 0:
		add_random(t, name, "weight", "F8_E4M3", n_out, n_in, 1);
		add_random(t, name, "weight_scale_inv", "F32", n_out / 16, n_in / 16, 4);
		break;
	case 1:
		add_random(t, name, "weight_packed", "I32", n_out, n_in / 8, 4);
		add_random(t, name, "weight_scale", "BF16", n_out, n_in / 16, 2);
		break;
	case 2:
		add_random(t, name, "weight_packed", "U8", n_out, n_in / 2, 1);
		add_random(t, name, "weight_scale", "F8_E4M3", n_out, n_in / 16, 1);
		add_random(t, name, "weight_global_scale", "F32", 1, 0, 4);
		break;
	default:
		add_random(t, name, "weight", "I8", n_out, n_in, 1);
		add_random(t, name, "weight_scale", "F16", n_out, 1, 2);
	}
}

static void add_layer(struct tiny_files *t, int layer, bool scaled)
{
	static const struct {
		const char *name;
		uint64_t n_out, n_in;
	} entry[] = {
		{ "input_layernorm", 32, 0 },	    { "self_attn.q_proj", 32, 32 },
		{ "self_attn.k_proj", 16, 32 },	    { "self_attn.v_proj", 16, 32 },
		{ "self_attn.o_proj", 32, 32 },	    { "post_attention_layernorm", 32, 0 },
		{ "block_sparse_moe.gate", 3, 32 },
	};
	char name[96];

	for (size_t i = 0; i < sizeof(entry) / sizeof(entry[0]); i++) {
		snprintf(name, sizeof(name), "model.layers.%d.%s", layer, entry[i].name);
		if (scaled && strcmp(entry[i].name, "self_attn.o_proj") == 0)
			add_scaled(t, name, entry[i].n_out, entry[i].n_in, 3);
		else
			add(t, name, entry[i].n_out, entry[i].n_in);
	}
	for (int e = 0; e < TINY_EXPERTS; e++)
		for (int w = 1; w <= 3; w++) {
			snprintf(name, sizeof(name), "model.layers.%d.block_sparse_moe.experts.%d.w%d", layer, e, w);
			if (scaled)
				add_scaled(t, name, w == 2 ? 32 : 48, w == 2 ? 48 : 32, e);
			else
				add(t, name, w == 2 ? 32 : 48, w == 2 ? 48 : 32);
		}
}

static void write_safetensors(const struct tiny_files *t)
{
	char *head = NULL, path[160];
	size_t head_len = 0, at = 0;
	uint64_t len;
	FILE *f = open_memstream(&head, &head_len);

	for (size_t i = 0; i < t->n; i++) {
		const struct tiny_tensor *x = &t->tensor[i];

		fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", i == 0 ? "{" : ",", x->name, x->dtype,
			(int)x->n_out);
		if (x->n_in > 0)
			fprintf(f, ",%d", (int)x->n_in);
		fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, at + x->bytes);
		at += x->bytes;
	}
	fprintf(f, "}");
	fclose(f);
	len = head_len;
	snprintf(path, sizeof(path), "%s/model.safetensors", t->checkpoint);
	f = fopen(path, "wb");
	if (f == NULL)
		abort();
	fwrite(&len, 8, 1, f);
	fwrite(head, 1, head_len, f);
	for (size_t i = 0; i < t->n; i++)
		fwrite(t->tensor[i].data, 1, t->tensor[i].bytes, f);
	if (fclose(f) != 0)
		abort();
	free(head);
}

static void make(struct tiny_files *t, bool scaled)
{
	memset(t, 0, sizeof(*t));
	snprintf(t->root, sizeof(t->root), "/tmp/od-tiny-XXXXXX");
	if (mkdtemp(t->root) == NULL)
		abort();
	snprintf(t->checkpoint, sizeof(t->checkpoint), "%s/checkpoint", t->root);
	snprintf(t->pack, sizeof(t->pack), "%s/pack", t->root);
	if (mkdir(t->checkpoint, 0755) != 0)
		abort();
	tiny_write(t->checkpoint, "config.json", config, sizeof(config) - 1);
	tiny_write(t->checkpoint, "tokenizer.json", tokenizer, sizeof(tokenizer) - 1);
	tiny_write(t->checkpoint, "generation_config.json", "{\"do_sample\":true}", 18);
	add(t, "model.embed_tokens", TINY_VOCAB, TINY_HIDDEN);
	add(t, "lm_head", TINY_VOCAB, TINY_HIDDEN);
	add(t, "model.norm", TINY_HIDDEN, 0);
	for (int layer = 0; layer < TINY_LAYERS; layer++)
		add_layer(t, layer, scaled && layer == 0);
	write_safetensors(t);
}

void tiny_files_make(struct tiny_files *t)
{
	make(t, false);
}

void tiny_files_make_scaled(struct tiny_files *t)
{
	make(t, true);
}

const struct tiny_tensor *tiny_files_find(const struct tiny_files *t, const char *name)
{
	for (size_t i = 0; i < t->n; i++)
		if (strcmp(t->tensor[i].name, name) == 0)
			return &t->tensor[i];
	return NULL;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

void tiny_files_free(struct tiny_files *t)
{
	nftw(t->root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	for (size_t i = 0; i < t->n; i++)
		free(t->tensor[i].data);
}

#include "tests/bench/synth/synth_files.h"

#include "common/base/file.h"
#include "tests/bench/synth/synth_family.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RMS_EPS 1e-5
#define ROPE_THETA 1e6 /* Mixtral's */
#define N_SPECIAL 3
/* How a weight file begins behind its header's length: "pt" is what transformers asks for, the rest tells what this
 * is. */
#define MARK "{\"__metadata__\":{\"format\":\"pt\",\"made_by\":\"od-bench synth\""

/* Takes root; NULL means that making it ran out of memory. */
static int write_json(json_t *root, const char *dir, const char *name, struct od_err *err)
{
	char path[PATH_MAX], *text;
	int rc = od_path(path, sizeof(path), dir, name, err);

	text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
	json_decref(root);
	if (rc == OD_OK)
		rc = text == NULL ? od_fail(err, OD_ERR_NOMEM, "making %s", path) :
				    od_file_write_atomic(path, text, strlen(text), err);
	free(text);
	return rc;
}

static const char *torch_dtype(enum od_dtype t)
{
	return t == OD_F32 ? "float32" : (t == OD_F16 ? "float16" : "bfloat16");
}

static json_t *family_config(const struct synth_model *m)
{
	json_t *config = json_deep_copy(synth_family_json(m->family));

	if (m->dtype != OD_F4_E2M1)
		json_object_del(config, "quantization_config"); /* fails where there is none */
	if (config != NULL && json_object_set_new(config, "torch_dtype", json_string(torch_dtype(m->dtype))) != 0) {
		json_decref(config);
		return NULL;
	}
	return config;
}

static json_t *mixtral_config(const struct synth_model *m)
{
	json_t *window = m->sliding_window != 0 ? json_integer((json_int_t)m->sliding_window) : json_null();

	return json_pack(
		"{s:[s], s:s, s:s, s:i, s:i, s:s, s:f, s:f, s:o, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
		"s:I, s:f, s:f, s:I}",
		"architectures", "MixtralForCausalLM", "model_type", "mixtral", "torch_dtype", torch_dtype(m->dtype),
		"bos_token_id", 1, "eos_token_id", 2, "hidden_act", "silu", "attention_dropout", 0.0,
		"initializer_range", 0.02, "sliding_window", window, "tie_word_embeddings", (int)m->tied, "use_cache",
		1, "head_dim", (json_int_t)m->head_dim, "vocab_size", (json_int_t)m->vocab, "hidden_size",
		(json_int_t)m->hidden, "intermediate_size", (json_int_t)m->intermediate, "num_hidden_layers",
		(json_int_t)m->layers, "num_attention_heads", (json_int_t)m->heads, "num_key_value_heads",
		(json_int_t)m->kv_heads, "num_local_experts", (json_int_t)m->experts, "num_experts_per_tok",
		(json_int_t)m->top_k, "rms_norm_eps", RMS_EPS, "rope_theta", ROPE_THETA, "max_position_embeddings",
		(json_int_t)m->ctx);
}

int synth_write_config(const struct synth_model *m, const char *dir, struct od_err *err)
{
	json_t *config = m->family != NULL ? family_config(m) : mixtral_config(m);
	json_t *generation = json_pack("{s:i, s:i, s:b}", "bos_token_id", 1, "eos_token_id", 2, "do_sample", 0);
	int rc = write_json(generation, dir, "generation_config.json", err);

	/* Last of all files: without it a folder is no checkpoint. */
	if (rc != OD_OK) {
		json_decref(config);
		return rc;
	}
	return write_json(config, dir, "config.json", err);
}

/* GPT-2's way to show a byte as a printable character: itself where it has a glyph, else from U+0100 on, in
 * the order of the bytes. */
static uint32_t byte_symbol(unsigned byte)
{
	uint32_t next_free = 0x100;

	for (unsigned b = 0; b < 256; b++) {
		bool glyph = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

		if (b == byte)
			return glyph ? b : next_free;
		if (!glyph)
			next_free++;
	}
	return 0; /* a byte is below 256 */
}

static void token_text(uint64_t id, char *buf, size_t size)
{
	static const char *const special[N_SPECIAL] = { "<unk>", "<s>", "</s>" };
	uint32_t c;

	if (id < N_SPECIAL) {
		snprintf(buf, size, "%s", special[id]);
	} else if (id >= N_SPECIAL + 256) {
		snprintf(buf, size, "<x%llu>", (unsigned long long)id);
	} else {
		c = byte_symbol((unsigned)id - N_SPECIAL);
		if (c < 0x80)
			snprintf(buf, size, "%c", (char)c);
		else
			snprintf(buf, size, "%c%c", (char)(0xc0u | c >> 6), (char)(0x80u | (c & 0x3fu)));
	}
}

static json_t *vocabulary(uint64_t n)
{
	json_t *vocab = json_object();
	char text[32];

	for (uint64_t id = 0; id < n; id++) {
		token_text(id, text, sizeof(text));
		if (json_object_set_new(vocab, text, json_integer((json_int_t)id)) != 0) {
			json_decref(vocab);
			return NULL;
		}
	}
	return vocab;
}

static json_t *added_tokens(void)
{
	json_t *all = json_array();
	char text[32];

	for (uint64_t id = 0; id < N_SPECIAL; id++) {
		token_text(id, text, sizeof(text));
		json_array_append_new(all, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id,
						     "content", text, "single_word", 0, "lstrip", 0, "rstrip", 0,
						     "normalized", 0, "special", 1));
	}
	return all;
}

/* <s> in front of every text. */
static json_t *bos_template(void)
{
	return json_pack("{s:s, s:[{s:{s:s,s:i}}, {s:{s:s,s:i}}], s:[{s:{s:s,s:i}}, {s:{s:s,s:i}}, {s:{s:s,s:i}}, "
			 "{s:{s:s,s:i}}], s:{s:{s:s, s:[i], s:[s]}}}",
			 "type", "TemplateProcessing", "single", "SpecialToken", "id", "<s>", "type_id", 0, "Sequence",
			 "id", "A", "type_id", 0, "pair", "SpecialToken", "id", "<s>", "type_id", 0, "Sequence", "id",
			 "A", "type_id", 0, "SpecialToken", "id", "<s>", "type_id", 1, "Sequence", "id", "B", "type_id",
			 1, "special_tokens", "<s>", "id", "<s>", "ids", 1, "tokens", "<s>");
}

static json_t *byte_level(bool add_prefix_space)
{
	return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", (int)add_prefix_space,
			 "trim_offsets", 1, "use_regex", 1);
}

static json_t *bpe(uint64_t vocab)
{
	return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout", "unk_token",
			 "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
			 "ignore_merges", 0, "vocab", vocabulary(vocab), "merges");
}

int synth_write_tokenizer(const struct synth_model *m, const char *dir, struct od_err *err)
{
	int rc = write_json(json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation",
				      "padding", "added_tokens", added_tokens(), "normalizer", "pre_tokenizer",
				      byte_level(false), "post_processor", bos_template(), "decoder", byte_level(true),
				      "model", bpe(m->vocab)),
			    dir, "tokenizer.json", err);

	if (rc != OD_OK)
		return rc;
	return write_json(json_pack("{s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:I}", "tokenizer_class",
				    "PreTrainedTokenizerFast", "bos_token", "<s>", "eos_token", "</s>", "unk_token",
				    "<unk>", "add_bos_token", 1, "add_eos_token", 0, "clean_up_tokenization_spaces", 0,
				    "model_max_length", (json_int_t)m->ctx),
			  dir, "tokenizer_config.json", err);
}

/* MXFP4 is published as bytes. */
static const char *file_dtype(enum od_dtype t)
{
	return t == OD_F4_E2M1 || t == OD_F8_E8M0 ? "U8" : od_dtype_name(t);
}

static void print_dims(FILE *f, const uint64_t dims[4])
{
	for (int i = 0; i < 4 && dims[i] != 0; i++)
		fprintf(f, "%s%llu", i > 0 ? "," : "", (unsigned long long)dims[i]);
}

/* Our tensors' names need no escapes, and there may be too many for a JSON tree. */
static void print_entries(FILE *f, const struct synth_model *m, uint64_t first, uint64_t end)
{
	struct synth_tensor t;
	uint64_t at = 0;

	for (uint64_t i = first; i < end; i++) {
		uint64_t bytes;

		synth_tensor_at(m, i, &t);
		bytes = synth_tensor_bytes(&t);
		fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t.name, file_dtype(t.dtype));
		if (t.dims[0] != 0)
			print_dims(f, t.dims);
		else if (!t.is_norm && !t.is_bias)
			fprintf(f, "%llu,", (unsigned long long)t.rows);
		if (t.dims[0] == 0)
			fprintf(f, "%llu", (unsigned long long)t.cols);
		fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + bytes));
		at += bytes;
	}
}

int synth_header(const struct synth_model *m, uint64_t first, uint64_t end, char **out, size_t *len, struct od_err *err)
{
	uint64_t json_bytes = 0; /* is written over the first eight bytes at last */
	FILE *f = open_memstream(out, len);
	bool bad;

	if (f == NULL)
		return od_fail_errno(err, OD_ERR_NOMEM, "safetensors header");
	fwrite(&json_bytes, sizeof(json_bytes), 1, f);
	fprintf(f, MARK ",\"seed\":\"%llu\"}", (unsigned long long)m->seed);
	print_entries(f, m, first, end);
	fputc('}', f);
	for (long n = ftell(f); n % 8 != 0; n++)
		fputc(' ', f);
	bad = ferror(f) != 0;
	if (fclose(f) != 0 || bad) {
		free(*out);
		*out = NULL;
		return od_fail(err, OD_ERR_NOMEM, "safetensors header of %llu tensors",
			       (unsigned long long)(end - first));
	}
	json_bytes = *len - sizeof(json_bytes);
	memcpy(*out, &json_bytes, sizeof(json_bytes));
	return OD_OK;
}

bool synth_is_weights(int dir_fd, const char *name)
{
	char start[sizeof(uint64_t) + sizeof(MARK) - 1];
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool is = fd >= 0 && pread(fd, start, sizeof(start), 0) == (ssize_t)sizeof(start) &&
		  memcmp(start + sizeof(uint64_t), MARK, sizeof(MARK) - 1) == 0;

	if (fd >= 0)
		close(fd);
	return is;
}

void synth_cut(const struct synth_model *m, uint64_t n_shards, uint64_t *first)
{
	uint64_t n = synth_n_tensors(m), total = synth_total_bytes(m), done = 0, i = 0;
	struct synth_tensor t;

	for (uint64_t s = 0; s < n_shards; s++) {
		uint64_t begin = i, goal = total / n_shards * (s + 1), left = n_shards - s - 1;

		first[s] = begin;
		/* At least one tensor each, and one for every file to come. */
		for (; i < n - left; i++) {
			uint64_t bytes;

			synth_tensor_at(m, i, &t);
			bytes = synth_tensor_bytes(&t);
			if (i > begin && left > 0 && done + bytes / 2 > goal)
				break;
			done += bytes;
		}
	}
	first[n_shards] = n;
}

void synth_shard_name(char *buf, uint64_t shard, uint64_t n_shards)
{
	if (n_shards == 1)
		snprintf(buf, SYNTH_FILE_BYTES, "model.safetensors");
	else
		snprintf(buf, SYNTH_FILE_BYTES, "model-%05u-of-%05u.safetensors", (unsigned)(shard + 1),
			 (unsigned)n_shards);
}

static void print_index(FILE *f, const struct synth_model *m, uint64_t n_shards, const uint64_t *first)
{
	char name[SYNTH_FILE_BYTES];
	struct synth_tensor t;

	fprintf(f, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{", (unsigned long long)synth_total_bytes(m));
	for (uint64_t s = 0; s < n_shards; s++) {
		synth_shard_name(name, s, n_shards);
		for (uint64_t i = first[s]; i < first[s + 1]; i++) {
			synth_tensor_at(m, i, &t);
			fprintf(f, "%s\n\"%s\":\"%s\"", i > 0 ? "," : "", t.name, name);
		}
	}
	fputs("}}\n", f);
}

int synth_write_index(const struct synth_model *m, const char *dir, uint64_t n_shards, const uint64_t *first,
		      struct od_err *err)
{
	char path[PATH_MAX], *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	bool bad;
	int rc;

	if (f == NULL)
		return od_fail_errno(err, OD_ERR_NOMEM, "safetensors index");
	print_index(f, m, n_shards, first);
	bad = ferror(f) != 0;
	rc = fclose(f) != 0 || bad ? od_fail(err, OD_ERR_NOMEM, "safetensors index") :
				     od_path(path, sizeof(path), dir, "model.safetensors.index.json", err);
	if (rc == OD_OK)
		rc = od_file_write_atomic(path, text, len, err);
	free(text);
	return rc;
}

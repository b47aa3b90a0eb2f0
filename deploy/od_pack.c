/* od-pack: makes, verifies and inspects packs. */
#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/pool.h"
#include "common/base/version.h"
#include "common/pack/given.h"
#include "common/pack/models_folder.h"
#include "common/pack/pack_info.h"
#include "common/pack/pack_verify.h"
#include "common/pack/shadow/shadow_add.h"
#include "common/pack/write/pack_write.h"
#include "common/pack/write/share_write.h"
#include "deploy/hub/hub_fetch.h"
#include "deploy/hub/hub_name.h"
#include "deploy/model_list.h"
#include "deploy/rate.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum exit_status { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define DEFAULT_SHADOWS "int8"
#define DEFAULT_CODEC OD_CODEC_PLANES /* by measurement: od-bench codec */
#define THREADS_MAX 16 /* each has a few MiB of buffers; the ceiling is 512 MiB */

struct pack_options {
	bool help, version, force, json;
	uint64_t n_threads;
	int codec; /* enum od_codec; -1: not given */
	const char *shadow; /* a list of precisions; NULL: not given */
	const char *against;
	const char *share; /* "W/N" */
	uint64_t group_size; /* 0: the model's top-k */
	const char *word[3];
	size_t n_words;
};

/* ---- progress: a bar on a terminal, a line now and then elsewhere ---- */

#define BAR_CELLS 30
#define BAR_EVERY_NS (100 * OD_NS_PER_MS)
#define LINE_MIN_NS (2 * OD_NS_PER_S)
#define LINE_MAX_NS (10 * OD_NS_PER_S)

struct bar {
	const char *verb;
	bool tty, open;
	uint64_t last_ns;
	struct odp_rate rate;
	int last_tenth;
};

static void bar_init(struct bar *b, const char *verb)
{
	*b = (struct bar){ .verb = verb, .tty = isatty(STDERR_FILENO) != 0, .last_ns = od_now_ns() };
}

static void bar_draw(struct bar *b, double fraction, const char *rate, const char *left)
{
	char cells[BAR_CELLS + 1];

	for (int i = 0; i < BAR_CELLS; i++)
		cells[i] = i < (int)(fraction * BAR_CELLS) ? '#' : '.';
	cells[BAR_CELLS] = '\0';
	fprintf(stderr, "\r%s [%s] %3d%%  %s  ETA %s   ", b->verb, cells, (int)(fraction * 100), rate, left);
	fflush(stderr);
	b->open = true;
}

static void on_progress(void *arg, uint64_t done, uint64_t all)
{
	struct bar *b = arg;
	uint64_t now = od_now_ns();
	const double fraction = all > 0 ? (double)done / (double)all : 1, rate = odp_rate_add(&b->rate, now, done);
	const int tenth = (int)(fraction * 10);
	char speed[24], left[16];

	odp_rate_text(rate, speed, sizeof(speed));
	odp_rate_left(rate, all - done, left, sizeof(left));
	if (b->tty) {
		if (now - b->last_ns < BAR_EVERY_NS && done < all)
			return;
		bar_draw(b, fraction, speed, left);
	} else {
		/* About ten lines in all, none for short jobs, and at least one every ten seconds. */
		if (now - b->last_ns < (tenth != b->last_tenth ? LINE_MIN_NS : LINE_MAX_NS))
			return;
		fprintf(stderr, "%s: %d%%, %s, %s left\n", b->verb, (int)(fraction * 100), speed, left);
		b->last_tenth = tenth;
	}
	b->last_ns = now;
}

static void bar_end(struct bar *b)
{
	if (b->open)
		fputc('\n', stderr);
	b->open = false;
}

static void on_note(void *arg, const char *text)
{
	bar_end(arg);
	fprintf(stderr, "od-pack: %s\n", text);
}

/* ---- commands ---- */

/* Messages quote names from files; replaces control characters, which could move the cursor. */
static void print_error(struct od_err *err)
{
	for (char *c = err->msg; *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	fprintf(stderr, "od-pack: error: %s\n", err->msg);
}

static int usage_error(const char *text)
{
	/* The parser's message may already point to --help. */
	fprintf(stderr, "od-pack: %s%s\n", text, strstr(text, "see --help") != NULL ? "" : "; see od-pack --help");
	return EXIT_USAGE;
}

/* Reports the shadows of a pack that failed, and how to make them later. */
static int report_missing(const char *pack, unsigned missing)
{
	char text[64];

	if (missing == 0)
		return EXIT_GOOD;
	od_shadow_set_text(missing, text, sizeof(text));
	fprintf(stderr, "od-pack: %s is complete, but without these shadows: %s; to try again: od-pack shadow %s %s\n",
		pack, text, pack, text);
	return EXIT_FAILED;
}

static int cmd_pack(const struct pack_options *o, unsigned shadows)
{
	struct bar bar;
	struct od_err err;
	char kept[PATH_MAX];
	unsigned missing;
	const struct od_pack_job job = {
		.checkpoint = o->word[0],
		.pack = o->word[1],
		.codec = o->codec >= 0 ? (enum od_codec)o->codec : DEFAULT_CODEC,
		.shadows = shadows,
		.by_default = o->shadow == NULL,
		.force = o->force,
		.n_threads = (unsigned)o->n_threads,
		.note = on_note,
		.progress = on_progress,
		.arg = &bar,
		.kept = kept,
		.missing = &missing,
	};
	int rc;

	bar_init(&bar, "packing");
	rc = od_pack_write(&job, &err);
	bar_end(&bar);
	if (rc != OD_OK) {
		print_error(&err);
		if (kept[0] != '\0')
			fprintf(stderr,
				"od-pack: the work so far is kept in %s; run the same command again to "
				"continue\n",
				kept);
		return EXIT_FAILED;
	}
	if (missing == 0)
		printf("%s is complete.\n", o->word[1]);
	return report_missing(o->word[1], missing);
}

static void on_phase(void *arg, const char *verb)
{
	bar_end(arg);
	bar_init(arg, verb);
}

static int cmd_fetch(const struct pack_options *o, unsigned shadows)
{
	struct bar bar;
	struct od_err err;
	char kept[PATH_MAX], name[256];
	unsigned missing = 0;
	const struct odp_fetch_job job = {
		.address = o->word[0],
		.pack = { .codec = o->codec >= 0 ? (enum od_codec)o->codec : DEFAULT_CODEC,
			  .shadows = shadows,
			  .by_default = o->shadow == NULL,
			  .n_threads = (unsigned)o->n_threads,
			  .note = on_note,
			  .progress = on_progress,
			  .arg = &bar,
			  .kept = kept,
			  .missing = &missing },
		.phase = on_phase,
	};
	int rc;

	umask(022); /* services of another user read the folder of models */
	signal(SIGPIPE,
	       SIG_IGN); /* TLS writes to connections that broke off, and whoever reads our lines may be gone */
	bar_init(&bar, "fetching");
	rc = odp_fetch(&job, name, &err);
	bar_end(&bar);
	if (rc != OD_OK) {
		print_error(&err);
		if (kept[0] != '\0')
			fprintf(stderr,
				"od-pack: what is there so far is kept in %s; run the same command again to continue\n",
				kept);
		return EXIT_FAILED;
	}
	if (missing == 0)
		printf("%s is complete. To use it: --pack %s\n", name, name);
	return report_missing(name, missing);
}

static int cmd_list(const struct pack_options *o)
{
	struct od_err err;

	if (odp_model_list(o->json, stdout, &err) == OD_OK)
		return EXIT_GOOD;
	print_error(&err);
	return EXIT_FAILED;
}

static int cmd_rm(const struct pack_options *o)
{
	char path[PATH_MAX];
	struct od_err err;

	if (od_models_remove(o->word[1], path, &err) != OD_OK) {
		print_error(&err);
		return EXIT_FAILED;
	}
	printf("%s is removed.\n", path);
	return EXIT_GOOD;
}

static int cmd_shadow(const struct pack_options *o, unsigned set)
{
	struct bar bar;
	struct od_pack *pack;
	struct od_err err;
	char text[64], folder[PATH_MAX] = "";
	unsigned missing;
	int fd = -1, rc = od_pack_open(&pack, o->word[1], &err);

	if (rc == OD_OK)
		rc = od_shadow_lock(pack, &fd, &err);
	if (rc != OD_OK) {
		print_error(&err);
		od_pack_close(pack);
		return EXIT_FAILED;
	}
	const struct od_shadow_add job = {
		.pack = pack,
		.force = o->force,
		.n_threads = (unsigned)o->n_threads,
		.note = on_note,
		.progress = on_progress,
		.arg = &bar,
		.all_bytes = od_shadow_set_bytes(od_pack_config(pack), set),
	};

	bar_init(&bar, "quantising");
	missing = od_shadow_add(&job, set);
	bar_end(&bar);
	close(fd);
	snprintf(folder, sizeof(folder), "%s", od_pack_folder(pack));
	od_pack_close(pack);
	if (missing == 0)
		printf("Now in %s: %s.\n", folder, od_shadow_set_text(set, text, sizeof(text)));
	return report_missing(o->word[1], missing);
}

static int cmd_share(const struct pack_options *o)
{
	struct bar bar;
	struct od_err err;
	const struct od_share_job job = {
		.pack = o->word[0],
		.share = o->share,
		.dir = o->word[1],
		.group_size = (uint32_t)o->group_size,
		.progress = on_progress,
		.arg = &bar,
	};
	uint32_t n;
	int rc;

	bar_init(&bar, "copying");
	rc = od_share_write(&job, &n, &err);
	bar_end(&bar);
	if (rc != OD_OK) {
		print_error(&err);
		return EXIT_FAILED;
	}
	printf("%s has the share of worker %s: %u experts. Copy it with its holes (rsync -aS, tar -cS), and start there:\n"
	       "od-worker --pack DIR\n",
	       o->word[1], o->share, n);
	return EXIT_GOOD;
}

/* Shadows of precisions that are no longer supported are not part of the pack. */
static void note_old_shadows(const char *given)
{
	char path[PATH_MAX], pack[PATH_MAX];
	struct od_err ignored;

	if (od_models_find(pack, given, &ignored) != OD_OK)
		return;
	for (const char *const *name = od_shadow_old_names; *name != NULL; name++)
		if (od_path(path, sizeof(path), pack, *name, NULL) == OD_OK && access(path, F_OK) == 0)
			fprintf(stderr,
				"od-pack: %s is of a precision that this version does not have; it is not used and may "
				"be deleted\n",
				path);
}

static int cmd_verify(const struct pack_options *o)
{
	struct bar bar;
	struct od_err err;
	struct od_verify_sums sums;
	const struct od_verify_job job = {
		.pack = o->word[1],
		.sums = &sums,
		.against = o->against,
		.n_threads = (unsigned)o->n_threads,
		.progress = on_progress,
		.arg = &bar,
	};
	int rc;

	bar_init(&bar, "verifying");
	rc = od_pack_verify(&job, &err);
	bar_end(&bar);
	note_old_shadows(o->word[1]);
	if (rc != OD_OK) {
		print_error(&err);
		return EXIT_FAILED;
	}
	if (sums.now > 0) {
		printf("%s: read; %zu of %zu checksums were known and hold%s\n", o->word[1], sums.known, sums.now,
		       sums.lost	     ? "; no folder for a cache can be written, so they are not kept" :
		       sums.known < sums.now ? ", the others are known from now on" :
					       "");
		return EXIT_GOOD;
	}
	printf("%s: good%s%s\n", o->word[1], o->against != NULL ? ", and the same as " : "",
	       o->against != NULL ? o->against : "");
	return EXIT_GOOD;
}

static int cmd_info(const struct pack_options *o)
{
	struct od_pack *pack;
	struct od_err err;
	int rc = od_pack_open_some(&pack, o->word[1], &err);

	if (rc == OD_OK)
		rc = od_pack_info(pack, o->json, stdout, &err);
	od_pack_close(pack);
	if (rc != OD_OK) {
		print_error(&err);
		return EXIT_FAILED;
	}
	note_old_shadows(o->word[1]);
	return EXIT_GOOD;
}

static void print_help(const struct od_arg *table, size_t n)
{
	printf("od-pack CHECKPOINT PACK       make a pack from a checkpoint folder (config.json, *.safetensors)\n"
	       "od-pack FILE.gguf PACK        make a pack from a GGUF file (any file of a split one)\n"
	       "od-pack hf://ORGANISATION/NAME[@REVISION][:QUANT]\n"
	       "                              fetch a model of Hugging Face: its checkpoint, which is packed, or the GGUF file\n"
	       "                              of that quantisation (without one, the largest that fits the memory)\n"
	       "od-pack https://.../NAME.gguf fetch a GGUF file\n"
	       "od-pack list                  show the models that --pack NAME finds; od-pack rm NAME removes one\n"
	       "od-pack shadow PACK LIST      add shadows: quantised copies of the model for od-shadow\n"
	       "od-pack --share W/N PACK DIR  write the part of PACK that worker W of N needs, to copy it there\n"
	       "od-pack verify PACK           check every byte of a pack and its shadows, or of a share\n"
	       "od-pack info PACK             show what is in a pack\n"
	       "\n"
	       "Until it is complete, PACK is named PACK.partial. After an interruption run the same command again:\n"
	       "it continues. A shadow is one file, PACK/shadow-PRECISION.bin; delete it if it is not needed.\n"
	       "What is fetched goes to the folder of models: $OD_MODELS, else /var/lib/od-moe/models or\n"
	       "$XDG_DATA_HOME/od-moe/models. HF_TOKEN (or the usual token file) opens gated models, HF_ENDPOINT names a\n"
	       "mirror, https_proxy a proxy.\n"
	       "shadow, --share, verify and info take a name of od-pack list or a GGUF file as PACK, too. A GGUF file needs\n"
	       "no pack to be used (--pack FILE.gguf); its shadows are in a cache.\n"
	       "LIST is a comma-separated list of precisions, here with bits per weight (experts, attention, dense\n"
	       "and shared networks; routers, embeddings, norms, biases and head stay as published):\n"
	       "  fp16       16     half precision\n"
	       "  int8        8     symmetric, one scale for each row\n"
	       "  nf4         4.5   4-bit NormalFloat, one scale for each 64 weights\n"
	       "Exit status: 0 good, 1 failed, 2 wrong usage.\n");
	od_args_help(stdout, table, n);
}

enum pack_command { CMD_PACK, CMD_FETCH, CMD_LIST, CMD_RM, CMD_SHADOW, CMD_SHARE, CMD_VERIFY, CMD_INFO };

static const struct {
	const char *word; /* the first word on the command line; NULL: none */
	size_t n_words;
	const char *expected;
} commands[] = {
	[CMD_PACK] = { NULL, 2, "expected CHECKPOINT and PACK" },
	[CMD_FETCH] = { NULL, 1, "expected the model's address alone: it goes to the folder of models" },
	[CMD_LIST] = { "list", 1, "expected no more words" },
	[CMD_RM] = { "rm", 2, "expected one NAME of od-pack list" },
	[CMD_SHADOW] = { "shadow", 3, "expected PACK and a list of precisions" },
	[CMD_SHARE] = { NULL, 2, "expected a PACK, and a folder for the share" },
	[CMD_VERIFY] = { "verify", 2, "expected one PACK" },
	[CMD_INFO] = { "info", 2, "expected one PACK" },
};

static enum pack_command find_command(const struct pack_options *o)
{
	if (o->share != NULL)
		return CMD_SHARE;
	if (o->n_words > 0 && odp_is_address(o->word[0]))
		return CMD_FETCH;
	if (o->n_words > 0)
		for (int i = CMD_PACK; i <= CMD_INFO; i++)
			if (commands[i].word != NULL && strcmp(o->word[0], commands[i].word) == 0)
				return (enum pack_command)i;
	return CMD_PACK;
}

static int run(const struct pack_options *o)
{
	const enum pack_command command = find_command(o);
	struct od_share share; /* only to check the syntax: the groups follow from the pack */
	unsigned set = 0;
	struct od_err err;

	/* One word that cannot be packed anyhow: the reason says more than the word that is missing. */
	if (command == CMD_PACK && o->n_words == 1 && od_given_checkpoint(o->word[0], NULL, &err) != OD_OK)
		print_error(&err);
	if (o->n_words != commands[command].n_words)
		return usage_error(commands[command].expected);
	if (o->against != NULL && command != CMD_VERIFY)
		return usage_error("--against belongs to od-pack verify");
	if (o->json && command != CMD_INFO && command != CMD_LIST)
		return usage_error("--json belongs to od-pack info and od-pack list");
	if (o->force && command != CMD_PACK && command != CMD_SHADOW)
		return usage_error("--force belongs to packing and to od-pack shadow");
	if (o->codec >= 0 && command != CMD_PACK && command != CMD_FETCH)
		return usage_error("--codec belongs to packing");
	if (o->group_size > 0 && command != CMD_SHARE)
		return usage_error("--group-size belongs to --share");
	if (command == CMD_SHARE && od_share_parse(&share, o->share, 1, 1, &err) != OD_OK) {
		od_fail_within(&err, "--share");
		return usage_error(err.msg);
	}
	if (o->shadow != NULL && command != CMD_PACK && command != CMD_FETCH)
		return usage_error("--shadow belongs to packing");
	if (command == CMD_PACK || command == CMD_FETCH || command == CMD_SHADOW) {
		const char *list = o->shadow != NULL ? o->shadow : DEFAULT_SHADOWS;

		if (od_shadow_set_parse(command == CMD_SHADOW ? o->word[2] : list, &set, &err) != OD_OK)
			return usage_error(err.msg);
	}
	if (command == CMD_SHADOW && set == 0)
		return usage_error("expected a list of precisions to add (to remove a shadow, delete its file)");
	switch (command) {
	case CMD_PACK: return cmd_pack(o, set);
	case CMD_FETCH: return cmd_fetch(o, set);
	case CMD_LIST: return cmd_list(o);
	case CMD_RM: return cmd_rm(o);
	case CMD_SHADOW: return cmd_shadow(o, set);
	case CMD_SHARE: return cmd_share(o);
	case CMD_VERIFY: return cmd_verify(o);
	case CMD_INFO: return cmd_info(o);
	}
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct pack_options o = { .n_threads = od_cpu_count(), .codec = -1 };
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "Packing" },
		{ .name = "shadow",
		  .kind = OD_ARG_STRING,
		  .out = &o.shadow,
		  .metavar = "LIST",
		  .help = "shadows to make with the pack; none: no shadow (default: " DEFAULT_SHADOWS ", if that is "
			  "smaller than the experts are)" },
		{ .name = "codec",
		  .kind = OD_ARG_CHOICE,
		  .out = &o.codec,
		  .metavar = "raw|zstd|lz4|planes",
		  .choices = od_codec_names,
		  .help = "lossless coding of the experts' exponents (default: planes)" },
		{ .name = "force",
		  .kind = OD_ARG_FLAG,
		  .out = &o.force,
		  .help = "replace an existing PACK; od-pack shadow: replace existing shadows" },
		{ .name = "threads",
		  .kind = OD_ARG_UINT,
		  .out = &o.n_threads,
		  .metavar = "N",
		  .help = "threads to use (default: one per CPU, at most 16)",
		  .min = 1,
		  .max = THREADS_MAX },
		{ .kind = OD_ARG_TITLE, .help = "One worker's share" },
		{ .name = "share",
		  .kind = OD_ARG_STRING,
		  .out = &o.share,
		  .metavar = "W/N",
		  .help = "worker W (from 1) of N, in the order of the hosts file" },
		{ .name = "group-size",
		  .kind = OD_ARG_UINT,
		  .out = &o.group_size,
		  .metavar = "G",
		  .help = "the --group-size of od-main (default: the model's top-k)",
		  .min = 1,
		  .max = 1024 },
		{ .kind = OD_ARG_TITLE, .help = "Verify, info and list" },
		{ .name = "against",
		  .kind = OD_ARG_STRING,
		  .out = &o.against,
		  .metavar = "CHECKPOINT",
		  .help = "verify: also compare every tensor with this checkpoint" },
		{ .name = "json", .kind = OD_ARG_FLAG, .out = &o.json, .help = "info, list: print JSON" },
		{ .name = "help", .kind = OD_ARG_FLAG, .out = &o.help, .help = "print this text" },
		{ .name = "version", .kind = OD_ARG_FLAG, .out = &o.version, .help = "print the version" },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	struct od_err err;

	od_log_init("od-pack", OD_LOG_INFO);
	o.n_threads = o.n_threads < THREADS_MAX ? o.n_threads : THREADS_MAX;
	if (od_args_parse(table, n, argc, argv, o.word, 3, &o.n_words, &err) != OD_OK)
		return usage_error(err.msg);
	if (o.help) {
		print_help(table, n);
		return EXIT_GOOD;
	}
	if (o.version) {
		printf("od-pack %s\n", OD_VERSION);
		return EXIT_GOOD;
	}
	if (sodium_init() < 0) {
		fprintf(stderr, "od-pack: error: libsodium does not start\n");
		return EXIT_FAILED;
	}
	return run(&o);
}

#include "common/pack/given.h"

#include "common/base/file.h"
#include "common/pack/gguf/gguf.h"
#include "common/pack/pack_layout.h"
#include "common/pack/sums.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOWNLOAD "hf download ORGANISATION/NAME --local-dir FOLDER"
#define TAKE "take its publication as config.json with *.safetensors files"

static bool begins(const char *s, const char *begin)
{
	return strncmp(s, begin, strlen(begin)) == 0;
}

static bool ends(const char *s, const char *end)
{
	const size_t n = strlen(s), k = strlen(end);

	return n > k && strcasecmp(s + n - k, end) == 0;
}

static bool has(const char *dir, const char *name)
{
	char path[PATH_MAX];

	return od_path(path, sizeof(path), dir, name, NULL) == OD_OK && od_file_there(path);
}

/* ---- files ---- */

/* Forms of models that are not read, by how a name ends. */
static const struct given_format {
	const char *end, *what, *todo;
} formats[] = {
	{ ".gguf", "GGUF", "name the file itself instead of its folder (any file of a split one)" },
	{ ".onnx", "ONNX, which is not read", TAKE },
	{ ".onnx_data", "ONNX, which is not read", TAKE },
	{ ".bin", "PyTorch's pickles, which are not read because they can hold programs",
	  "take the model's publication with *.safetensors "
	  "files, or convert it: transformers' AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER)" },
	{ ".h5", "TensorFlow's, which is not read", TAKE },
	{ ".msgpack", "Flax's, which is not read", TAKE },
	{ ".npz", "NumPy's (as of MLX), which is not read", TAKE },
	{ ".zip", "an archive", "unpack it and name the folder" },
	{ ".tar", "an archive", "unpack it and name the folder" },
	{ ".gz", "an archive", "unpack it and name the folder" },
	{ ".tgz", "an archive", "unpack it and name the folder" },
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static const struct given_format *format_of(const char *name)
{
	const bool pickle = ends(name, ".pt") || ends(name, ".pth") || ends(name, ".ckpt");

	for (size_t i = 0; i < N_FORMATS; i++)
		if (ends(name, pickle ? ".bin" : formats[i].end) || (pickle && strcmp(formats[i].end, ".bin") == 0))
			return &formats[i];
	return NULL;
}

/* Recognises a file by its first bytes, whatever its name; NULL: unknown. */
static const char *content_of(const char *path)
{
	static const struct {
		const char *begin, *what;
	} known[] = {
		{ "version https://git-lfs.github.com/spec/",
		  "a git LFS pointer instead of the file itself: git lfs install, then git lfs pull "
		  "in that folder (or " DOWNLOAD ")" },
		{ "<!DOCTYPE html", "a web page (HTML) instead of the file itself: " DOWNLOAD },
		{ "<!doctype html", "a web page (HTML) instead of the file itself: " DOWNLOAD },
		{ "<html", "a web page (HTML) instead of the file itself: " DOWNLOAD },
		{ "GGUF", "a GGUF file: name the file itself instead of its folder" },
	};
	char text[64] = "";
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (n > 0)
		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			if (begins(text, known[i].begin))
				return known[i].what;
	return NULL;
}

/* The folder of a file, for messages. */
static void folder_of(const char *path, char dir[PATH_MAX])
{
	const char *slash = strrchr(path, '/');

	if (slash == NULL)
		snprintf(dir, PATH_MAX, ".");
	else
		snprintf(dir, PATH_MAX, "%.*s", (int)(slash == path ? 1 : slash - path), path);
}

static int refuse_file(const char *path, const char *wanted, struct od_err *err)
{
	const char *content = content_of(path), *base = strrchr(path, '/');
	const struct given_format *format = format_of(path);
	char dir[PATH_MAX];

	base = base == NULL ? path : base + 1;
	folder_of(path, dir);
	if (content != NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s is %s", path, content);
	if (ends(path, ".gguf"))
		return od_fail(
			err, OD_ERR_FORMAT,
			"%s does not begin with \"GGUF\", as a GGUF file does: it is damaged or empty; get the file "
			"again",
			path);
	if (format != NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: the form of this file is %s; %s", path, format->what,
			       format->todo);
	if (has(dir, OD_MODEL_NAME) && has(dir, OD_SUMS_NAME))
		return od_fail(err, OD_ERR_ARG, "%s is a file of a pack; expected %s: %s", path, wanted, dir);
	if (ends(base, ".safetensors") || has(dir, "config.json"))
		return od_fail(err, OD_ERR_ARG, "%s is one file of a checkpoint; expected %s: its folder is %s", path,
			       wanted, dir);
	return od_fail(err, OD_ERR_ARG, "%s is a file; expected %s", path, wanted);
}

/* ---- names of Hugging Face ---- */

/* The ORGANISATION/NAME in what was given: alone, or in an address. */
static bool hub_name(const char *given, char name[256])
{
	static const char *const hosts[] = { "https://huggingface.co/",
					     "http://huggingface.co/",
					     "huggingface.co/",
					     "https://hf.co/",
					     "hf.co/",
					     "hf://models/",
					     "hf://" };
	const char *s = given, *end;
	size_t slashes = 0;
	bool address = false;

	for (size_t i = 0; !address && i < sizeof(hosts) / sizeof(hosts[0]); i++)
		if (begins(s, hosts[i])) {
			address = true;
			s += strlen(hosts[i]);
		}
	for (end = s; *end != '\0' &&
		      (isalnum((unsigned char)*end) || strchr("._-", *end) != NULL || (*end == '/' && slashes == 0));
	     end++)
		slashes += *end == '/';
	if (slashes != 1 || *s == '/' || *s == '.' || end[-1] == '/' || (!address && *end != '\0') || end - s > 200)
		return false;
	snprintf(name, 256, "%.*s", (int)(end - s), s);
	return true;
}

static int refuse_absent(const char *path, const char *kind, struct od_err *err)
{
	char name[256];
	struct stat st;

	if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
		return od_fail(err, OD_ERR_MISSING, "no %s: %s is a symbolic link to something that does not exist",
			       kind, path);
	if (hub_name(path, name))
		return od_fail(
			err, OD_ERR_MISSING,
			"no %s %s here; if it is a model on Hugging Face: od-pack hf://%s fetches it, then: --pack %s",
			kind, path, name, strchr(name, '/') + 1);
	if (strstr(path, "://") != NULL)
		return od_fail(
			err, OD_ERR_MISSING,
			"no %s %s: expected a folder on this machine, found an address; od-pack fetches models: od-pack "
			"hf://ORGANISATION/NAME, or od-pack https://.../NAME.gguf",
			kind, path);
	return od_fail(err, OD_ERR_MISSING, "no %s %s", kind, path);
}

/* ---- folders ---- */

struct folder {
	size_t n, n_safetensors; /* entries; *.safetensors */
	bool consolidated; /* all of those are Mistral's */
	const struct given_format *format; /* the file has it and is not read; NULL: none */
	char format_name[256];
	char pointer[256]; /* a file that is not what its name says; "": none */
	const char *content;
	size_t n_pointers;
	char unfinished[256]; /* an interrupted download */
	char inner[PATH_MAX]; /* a checkpoint below this folder */
	size_t n_inner;
	unsigned first_missing, n_shards; /* by names like model-00001-of-00003.safetensors; 0: none is missing */
	char shard[256];
};

static bool is_checkpoint(const char *dir)
{
	return od_is_dir(dir) && has(dir, "config.json") && !has(dir, OD_MODEL_NAME);
}

/* Something of the model whose content can be a pointer. */
static bool is_of_model(const char *name)
{
	return ends(name, ".safetensors") || ends(name, ".json") || ends(name, ".model") || ends(name, ".jinja");
}

static void look_inside(struct folder *f, const char *path)
{
	if (!is_checkpoint(path))
		return;
	if (f->n_inner++ == 0)
		snprintf(f->inner, sizeof(f->inner), "%s", path);
}

static void look_at_file(struct folder *f, const char *path, const char *name)
{
	const char *content = is_of_model(name) ? content_of(path) : NULL;
	const struct given_format *format = format_of(name);

	if (content != NULL && f->n_pointers++ == 0) {
		snprintf(f->pointer, sizeof(f->pointer), "%s", name);
		f->content = content;
	}
	if (ends(name, ".incomplete") || ends(name, ".part") || ends(name, ".crdownload") || ends(name, ".aria2"))
		snprintf(f->unfinished, sizeof(f->unfinished), "%s", name);
	if (ends(name, ".safetensors")) {
		f->consolidated = (f->n_safetensors == 0 || f->consolidated) && begins(name, "consolidated");
		f->n_safetensors++;
	} else if (format != NULL && f->format == NULL) {
		snprintf(f->format_name, sizeof(f->format_name), "%s", name);
		f->format = format;
	}
}

/* each: called for what is in dir, but not for hidden names. False: the folder cannot be read. */
static bool scan(const char *dir, void (*each)(struct folder *f, const char *path, const char *name), struct folder *f)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char path[PATH_MAX];

	if (d == NULL)
		return false;
	while ((e = readdir(d)) != NULL)
		if (e->d_name[0] != '.' && od_path(path, sizeof(path), dir, e->d_name, NULL) == OD_OK)
			each(f, path, e->d_name);
	closedir(d);
	return true;
}

static void look_below(struct folder *f, const char *path, const char *name)
{
	(void)name;
	look_inside(f, path);
}

static void look_at(struct folder *f, const char *path, const char *name)
{
	f->n++;
	if (!od_is_dir(path)) {
		look_at_file(f, path, name);
		return;
	}
	look_inside(f, path);
	if (strcmp(name, "snapshots") == 0 || f->n_inner == 0) /* the cache of Hugging Face has two folders more */
		(void)scan(path, look_below, f);
}

static void look_at_shard(struct folder *f, const char *path, const char *name)
{
	unsigned i, n;
	int at = -1;
	const char *dash = strstr(name, "-of-");

	(void)path;
	if (dash == NULL || dash - name < 6 || sscanf(dash - 6, "-%5u-of-%5u.safetensors%n", &i, &n, &at) != 2 ||
	    at < 0 || dash[-6 + at] != '\0' || n == 0 || n > 9999)
		return;
	f->n_shards = n;
	snprintf(f->shard, sizeof(f->shard), "%.*s", (int)(dash - 6 - name), name);
}

/* Finds the first missing shard of a checkpoint without an index. */
static void find_missing_shard(struct folder *f, const char *dir)
{
	char name[512];

	(void)scan(dir, look_at_shard, f);
	for (unsigned i = 1; i <= f->n_shards && f->first_missing == 0; i++) {
		snprintf(name, sizeof(name), "%s-%05u-of-%05u.safetensors", f->shard, i, f->n_shards);
		f->first_missing = has(dir, name) ? 0 : i;
	}
}

static int refuse_download(const struct folder *f, const char *dir, const char *what, struct od_err *err)
{
	return od_fail(err, OD_ERR_MISSING, "%s: %s%s%s%s; get the rest: hf download ORGANISATION/NAME --local-dir %s",
		       dir, what, f->unfinished[0] != '\0' ? " (an unfinished download is there: " : "", f->unfinished,
		       f->unfinished[0] != '\0' ? ")" : "", dir);
}

/* A folder without config.json. */
static int refuse_other_folder(const struct folder *f, const char *dir, struct od_err *err)
{
	if (has(dir, "params.json"))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s is in Mistral's or Meta's own form (params.json), which is not read; " TAKE, dir);
	if (f->n_inner > 0)
		return od_fail(err, OD_ERR_ARG, "%s: config.json is missing; %s below it %s: %s", dir,
			       f->n_inner == 1 ? "a checkpoint is" : "several checkpoints are",
			       f->n_inner == 1 ? "" : ", for example", f->inner);
	if (f->format != NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: the form of %s is %s; %s", dir, f->format_name,
			       f->format->what, f->format->todo);
	if (f->n == 0)
		return od_fail(err, OD_ERR_MISSING,
			       "%s is empty; expected a checkpoint folder: config.json with *.safetensors files", dir);
	if (f->n_safetensors > 0)
		return refuse_download(f, dir, "there are *.safetensors files, but config.json is missing", err);
	return od_fail(err, OD_ERR_MISSING, "%s is no checkpoint folder: config.json is missing", dir);
}

static int check_weights(struct folder *f, const char *dir, struct od_err *err)
{
	char what[320];

	if (f->n_safetensors == 0 && f->format != NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: no *.safetensors file; the form of %s is %s; %s", dir,
			       f->format_name, f->format->what, f->format->todo);
	if (has(dir, "model.safetensors") || has(dir, "model.safetensors.index.json"))
		return OD_OK;
	if (f->n_safetensors == 0)
		return refuse_download(
			f, dir,
			"no model.safetensors, no model.safetensors.index.json and no other *.safetensors file there",
			err);
	if (f->consolidated)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: its weights are in Mistral's own form (consolidated*.safetensors), which is not "
			       "read; " TAKE,
			       dir);
	find_missing_shard(f, dir);
	if (f->first_missing == 0)
		return OD_OK;
	snprintf(what, sizeof(what), "%s-%05u-of-%05u.safetensors is missing", f->shard, f->first_missing, f->n_shards);
	return refuse_download(f, dir, what, err);
}

static bool is_pack(const char *dir)
{
	return has(dir, OD_MODEL_NAME) || has(dir, OD_SUMS_NAME);
}

static int check_folder(const char *dir, struct od_err *err)
{
	struct folder *f;
	int rc = OD_OK;

	if (has(dir, OD_SOURCE_NAME) && has(dir, OD_EXPERTS_NAME))
		return od_fail(
			err, OD_ERR_ARG,
			"%s is an unfinished pack, not a checkpoint; run the od-pack command that began it again, and it "
			"continues",
			dir);
	if (is_pack(dir) && has(dir, OD_EXPERTS_NAME))
		return od_fail(err, OD_ERR_ARG,
			       "%s is a pack already, not a checkpoint; to look at it: od-pack info %s", dir, dir);
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "checkpoint %s", dir);
	if (!scan(dir, look_at, f))
		rc = od_fail_errno(err, OD_ERR_IO, "cannot read checkpoint folder %s", dir);
	else if (f->content != NULL)
		rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s/%s%s is %s", dir, f->pointer,
			     f->n_pointers > 1 ? " (and others)" : "", f->content);
	else if (has(dir, "adapter_config.json") && f->n_safetensors == (has(dir, "adapter_model.safetensors") ? 1 : 0))
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s is an adapter (LoRA), which changes another model: merge the two first (peft: "
			     "merge_and_unload(), then save_pretrained(FOLDER)) and pack that folder",
			     dir);
	else
		rc = has(dir, "config.json") ? check_weights(f, dir, err) : refuse_other_folder(f, dir, err);
	free(f);
	return rc;
}

/* ---- the two questions ---- */

int od_given_checkpoint(const char *path, const char *other, struct od_err *err)
{
	int rc;

	if (od_is_dir(path))
		rc = check_folder(path, err);
	else if (od_gguf_is(path))
		rc = OD_OK;
	else if (od_file_there(path) && access(path, F_OK) == 0)
		rc = refuse_file(path, "a checkpoint folder (config.json with *.safetensors files)", err);
	else
		rc = refuse_absent(path, "checkpoint folder", err);
	if (rc != OD_OK && other != NULL && is_checkpoint(other) && !is_checkpoint(path))
		rc = od_fail(err, OD_ERR_ARG,
			     "%s is no checkpoint, but %s is one; the checkpoint comes first: od-pack %s %s", path,
			     other, other, path);
	return rc;
}

int od_given_pack(const char *path, struct od_err *err)
{
	char name[256];

	if (!od_is_dir(path)) {
		if (access(path, F_OK) == 0)
			return refuse_file(path, "the folder of a pack, as od-pack makes it from a checkpoint", err);
		if (hub_name(path, name) || strstr(path, "://") != NULL)
			return refuse_absent(path, "pack", err);
		return od_fail(err, OD_ERR_MISSING,
			       "no pack at %s; make one with: od-pack CHECKPOINT %s, or fetch one: od-pack "
			       "hf://ORGANISATION/NAME",
			       path, path);
	}
	if (is_pack(path))
		return OD_OK;
	if (has(path, OD_SOURCE_NAME))
		return od_fail(
			err, OD_ERR_MISSING,
			"%s is an unfinished pack; run the od-pack command that began it again, and it continues",
			path);
	if (has(path, "config.json"))
		return od_fail(err, OD_ERR_MISSING, "%s is a checkpoint, not a pack; make one with: od-pack %s PACK",
			       path, path);
	return od_fail(err, OD_ERR_MISSING, "%s is no pack: it has no %s; make one with: od-pack CHECKPOINT PACK", path,
		       OD_MODEL_NAME);
}

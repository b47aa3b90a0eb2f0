/* models_folder.h - the folders of models: where od-pack puts what it fetches, and where --pack NAME finds it.
 *
 * $OD_MODELS names the only folder. Without it there are two: /var/lib/od-moe/models, the machine's, and
 * $XDG_DATA_HOME/od-moe/models (~/.local/share/od-moe/models), the user's. A model is the folder of a pack, NAME.gguf,
 * or a folder with the files of a split GGUF file. It has its name only when it is complete: until then od-pack writes
 * in NAME.part and NAME.partial. .NAME.source says where it is from.
 * Thread: any. */
#ifndef OD_PACK_MODELS_FOLDER_H
#define OD_PACK_MODELS_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum od_models_form { OD_MODELS_PACK, OD_MODELS_GGUF, OD_MODELS_UNFINISHED };

struct od_models_entry {
	enum od_models_form form;
	char *name; /* for --pack; of an unfinished one: its name in the end */
	char *path; /* the file or folder in the models folder */
	char *open; /* od_pack_open takes it: the first file of a split GGUF file */
	char *source; /* "hf://org/name:Q4_K_M 0123abcd"; NULL: not known */
	uint64_t bytes;
	int64_t mtime_s;
};

struct od_models {
	struct od_models_entry *entry; /* [n]; sorted by name */
	size_t n, cap;
};

/* The folder for new models, which is made: the machine's where it may be written, else the user's. */
OD_MUST_CHECK int od_models_home(char out[PATH_MAX], struct od_err *err);
/* All models of all folders; of two with one name the machine's. */
OD_MUST_CHECK int od_models_list(struct od_models *m, struct od_err *err);
void od_models_fini(struct od_models *m);

/* Finds the path to open for a value of --pack (NULL or "": none was given). A path stays as it is, a name is looked for
 * in the folders. Without a value: $OD_PACK, else /var/lib/od-moe/pack if it is there, else the only model. A name that
 * no model has stays as it is: opening it says so. */
OD_MUST_CHECK int od_models_find(char out[PATH_MAX], const char *given, struct od_err *err);
/* Adds to the message about a pack that is not there which models there are. Returns err->code. */
int od_models_name_others(const char *given, struct od_err *err);

/* Writes, or removes (NULL), what .NAME.source of the folder says. */
OD_MUST_CHECK int od_models_set_source(const char *dir, const char *name, const char *source, struct od_err *err);

/* Removes a model, or the parts of an unfinished one, and nothing outside of the models folder: of a symbolic link only
 * the link. OD_ERR_BUSY: a process has it open (od_models_hold), or writes it. */
OD_MUST_CHECK int od_models_remove(const char *name, char path[PATH_MAX], struct od_err *err);
/* A process that has this file of a model open says so until it closes fd. OD_ERR_BUSY: it is being removed. */
OD_MUST_CHECK int od_models_hold(int fd, const char *path, struct od_err *err);

#endif

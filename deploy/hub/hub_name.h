/* hub_name.h - what od-pack is asked to fetch: hf://ORGANISATION/NAME[@REVISION][:QUANT], or the address of a GGUF
 * file. Also names from the hub or an address, which are hostile, and become names of files here.
 *
 * Thread: any. Owner: the caller's storage. */
#ifndef OD_PACK_HUB_NAME_H
#define OD_PACK_HUB_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct odp_hub_name {
	char org[97], name[97];
	char revision[257]; /* "main" where none was given */
	char quant[129]; /* "": none was given */
};

/* True for what begins with a scheme: hf://, https://, http://. */
bool odp_is_address(const char *text);
/* text begins with hf://. */
OD_MUST_CHECK int odp_hub_name_parse(struct odp_hub_name *out, const char *text, struct od_err *err);

/* A path in a repository: relative, and its parts neither empty nor "." nor "..", without control characters. */
bool odp_is_safe_path(const char *path, size_t len);
/* The last part of a path as the name of a file here: letters, digits and "._-+" stay, others become "_", and so does a
 * dot or a hyphen in front. */
void odp_local_name(const char *path, char *out, size_t size);
/* Appends text as a part of a URL; slash: '/' stays, too. The caller has room for 3 bytes a character and a NUL. */
void odp_url_append(char *url, size_t size, const char *text, bool slash);
/* The name of the file that an address ends with, decoded and made safe; "" if it ends with none. */
void odp_url_file_name(const char *url, char *out, size_t size);
/* An address as messages and files may show it: without user and password, query and fragment. */
void odp_url_shown(const char *url, char *out, size_t size);

#endif

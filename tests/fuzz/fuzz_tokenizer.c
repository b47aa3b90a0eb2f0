/* Any tokenizer.json, changed from those of tests/golden/tokenizer, and any text: it is refused with a reason, or
 * encodes the text to ids that it has, twice the same, and decodes them, at once and as a stream.
 * Input: json_mix.h's, then the text; or '{' and the rest of a tokenizer.json. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/text/tokenizer.h"
#include "tests/fuzz/fuzz_text.h"
#include "tests/fuzz/json_mix.h"

/* Read where run.sh stands. */
static const char *const names[] = { "llama3", "mixtral",   "affixes",	   "nfkd",	  "metaspace_first",
				     "added",  "nfd_strip", "deepseek_v3", "merged_next", "phi" };

static struct json_mix *mix;

static void start(void)
{
	json_t *docs, *doc;
	char path[128];

	if (mix != NULL)
		return;
	docs = json_array();
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "tests/golden/tokenizer/tok_%s.json", names[i]);
		doc = json_load_file(path, 0, NULL);
		check(doc != NULL && json_array_append_new(docs, doc) == 0);
	}
	mix = json_mix_new(docs, "vocab");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_tokenizer *t;
	struct od_err err = { 0 };
	const char *text = "text";
	char *file = NULL;
	size_t len = 4;
	int rc;

	if (size > 0 && data[0] == '{') {
		rc = od_tokenizer_parse(&t, OD_TOKENIZER_JSON, (const char *)data, size, NULL, "fuzz", &err);
	} else {
		json_t *root;

		start();
		root = json_mix_make(mix, &data, &size);
		file = json_dumps(root, JSON_COMPACT);
		json_decref(root);
		if (file == NULL)
			return 0;
		rc = od_tokenizer_parse(&t, OD_TOKENIZER_JSON, file, strlen(file), NULL, "fuzz", &err);
		text = (const char *)data;
		len = size;
	}
	if (rc != OD_OK)
		check(t == NULL && err.msg[0] != '\0');
	else
		fuzz_text(t, text, len);
	free(file);
	od_tokenizer_free(t);
	return 0;
}

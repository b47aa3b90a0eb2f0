/* Any bytes at all as recorded routes; what is accepted keeps to what route_file.h promises, and written again gives
 * the same bytes. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/sim/route_file.h"
#include "tests/fuzz/fuzz.h"

static void write_again(const struct od_routes *r, const char *path)
{
	struct od_route_writer *w;

	check(od_route_open(&w, path, &r->head, NULL) == OD_OK);
	for (size_t i = 0; i < r->n_steps; i++) {
		const struct od_route_step *s = &r->step[i];

		od_route_step(w, s->step, s->prompt, s->n_rows);
		for (uint32_t k = 0; k < s->n_rows; k++)
			od_route_row(w, s->row[k].sequence, s->row[k].position);
		for (uint32_t m = 0; m < s->n_moe; m++) {
			od_route_layer(w);
			for (uint32_t k = 0; k < s->n_rows; k++)
				od_route_experts(w, s->expert + ((size_t)m * s->n_rows + k) * r->head.top_k);
		}
	}
	check(od_route_close(w, NULL) == OD_OK);
}

static void is_the_same(const char *path, const uint8_t *data, size_t size)
{
	uint8_t *again = malloc(size + 1);
	FILE *f = fopen(path, "rb");

	check(again != NULL && f != NULL);
	check(fread(again, 1, size + 1, f) == size && memcmp(again, data, size) == 0);
	fclose(f);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_err err = { 0 };
	struct od_routes r;
	char path[64];

	if (od_routes_parse(&r, data, size, "routes", &err) != OD_OK) {
		check(r.step == NULL && r.n_steps == 0 && err.msg[0] != '\0');
		return 0;
	}
	for (size_t i = 0; i < r.n_steps; i++) {
		const struct od_route_step *s = &r.step[i];

		check(s->n_moe <= r.head.n_moe && s->n_rows > 0 && (i == 0 || s->step > s[-1].step));
		for (size_t k = 0; k < (size_t)s->n_moe * s->n_rows * r.head.top_k; k++)
			check(s->expert[k] < r.head.n_experts);
	}
	snprintf(path, sizeof(path), "/dev/shm/od-fuzz-routes-%d", (int)getpid());
	write_again(&r, path);
	is_the_same(path, data, size);
	unlink(path);
	od_routes_fini(&r);
	return 0;
}

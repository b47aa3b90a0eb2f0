/* temp_dir.h - a fresh folder under /tmp for the files of one test program, as a cmocka group set-up and tear-down.
 * Thread: one. */
#ifndef OD_TESTS_TEMP_DIR_H
#define OD_TESTS_TEMP_DIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

static char temp_dir[64];

static inline int temp_dir_make(void **state)
{
	(void)state;
	snprintf(temp_dir, sizeof(temp_dir), "/tmp/od-test-XXXXXX");
	return mkdtemp(temp_dir) != NULL ? 0 : -1;
}

static inline int temp_dir_remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

static inline int temp_dir_remove(void **state)
{
	(void)state;
	return nftw(temp_dir, temp_dir_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The path of a file there; valid until the second call after this one. */
static inline const char *temp_path(const char *name)
{
	static char path[2][512];
	static int turn;

	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", temp_dir, name);
	return path[turn];
}

#endif

#include "common/base/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The two versions' names of the same figures. */
struct names {
	const char *folder, *limit, *usage, *cache[2]; /* cache: fields of memory.stat, of groups within it, too */
};

static const struct names version1 = {
	"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", { "total_inactive_file", "total_active_file" }
};
static const struct names version2 = { "", "memory.max", "memory.current", { "inactive_file", "active_file" } };

static FILE *open_in(const char *dir, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", dir, name) < (int)sizeof(path) ? fopen(path, "re") : NULL;
}

/* False: there is no such file, or it says "max". */
static bool read_bytes(const char *dir, const char *name, uint64_t *bytes)
{
	FILE *f = open_in(dir, name);
	bool ok = f != NULL && fscanf(f, "%" SCNu64, bytes) == 1;

	if (f != NULL)
		fclose(f);
	return ok;
}

static uint64_t cache_bytes(const char *dir, const struct names *n)
{
	uint64_t sum = 0, bytes;
	char field[64];
	FILE *f = open_in(dir, "memory.stat");

	while (f != NULL && fscanf(f, "%63s %" SCNu64, field, &bytes) == 2)
		sum += strcmp(field, n->cache[0]) == 0 || strcmp(field, n->cache[1]) == 0 ? bytes : 0;
	if (f != NULL)
		fclose(f);
	return sum;
}

static uint64_t room_of(const char *dir, const struct names *n)
{
	uint64_t limit, usage, cache;

	if (!read_bytes(dir, n->limit, &limit) || !read_bytes(dir, n->usage, &usage))
		return UINT64_MAX;
	cache = cache_bytes(dir, n);
	usage -= cache < usage ? cache : usage;
	return usage < limit ? limit - usage : 0;
}

/* Free bytes of the group and of all around it. In a container the path may be the host's, and the mount the
 * container's own: then only the mount itself exists. */
static uint64_t room_up(const char *mount, const char *path, const struct names *n)
{
	uint64_t least = UINT64_MAX, room;
	char dir[PATH_MAX];
	const int top = snprintf(dir, sizeof(dir), "%s%s", mount, n->folder);

	if (top < 0 || top >= (int)sizeof(dir) ||
	    snprintf(dir + top, sizeof(dir) - (size_t)top, "%s", path) >= (int)sizeof(dir) - top)
		return UINT64_MAX;
	for (;;) {
		char *slash = strrchr(dir + top, '/');

		room = room_of(dir, n);
		least = room < least ? room : least;
		if (slash == NULL)
			return least;
		*slash = '\0';
	}
}

/* Whether a list with commas has "memory". */
static bool has_memory(const char *controllers)
{
	char list[256];

	snprintf(list, sizeof(list), ",%s,", controllers);
	return strstr(list, ",memory,") != NULL;
}

uint64_t od_cgroup_available_bytes(const char *groups, const char *mount)
{
	uint64_t least = UINT64_MAX, room;
	char line[PATH_MAX];
	FILE *f = fopen(groups, "re");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL) { /* "4:memory:/path", or of version 2 "0::/path" */
		char *controllers = strchr(line, ':'),
		     *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

		if (path == NULL)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		controllers++;
		room = *controllers == '\0'    ? room_up(mount, path, &version2) :
		       has_memory(controllers) ? room_up(mount, path, &version1) :
						 UINT64_MAX;
		least = room < least ? room : least;
	}
	if (f != NULL)
		fclose(f);
	return least;
}

#include "common/base/mem.h"

#include "common/base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES (2u << 20)
#define HUGE_FROM_BYTES (32u << 20) /* below, the waste at the ends would show in a small daemon's memory */

/* Weights are read in long streams, and 4 KiB pages cost a tenth to a third of the bandwidth in address translation.
 * Only advice: where the kernel has no huge pages to give, nothing changes. */
static void advise_huge_pages(char *p, size_t bytes)
{
	uintptr_t begin = ((uintptr_t)p + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
	uintptr_t end = ((uintptr_t)p + bytes) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);

	if (bytes >= HUGE_FROM_BYTES && begin < end)
		madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void *od_alloc(size_t bytes)
{
	uint64_t total;
	char *raw, *p;

	/* calloc maps large blocks fresh from the kernel and does not touch them, which aligned_alloc and
	 * memset would; so align by hand and keep the true start in front. */
	if (!od_add(bytes, OD_PAD_BYTES + 64u + sizeof(void *), &total))
		return NULL;
	raw = calloc(1, total);
	if (raw == NULL)
		return NULL;
	p = (char *)(((uintptr_t)raw + sizeof(void *) + 63u) & ~(uintptr_t)63);
	memcpy(p - sizeof(void *), &raw, sizeof(void *));
	advise_huge_pages(p, bytes);
	return p;
}

void *od_alloc_array(size_t n, size_t each_bytes)
{
	uint64_t total;

	return od_mul(n, each_bytes, &total) ? od_alloc(total) : NULL;
}

void od_free(void *p)
{
	char *raw;

	if (p == NULL)
		return;
	memcpy(&raw, (char *)p - sizeof(void *), sizeof(void *));
	free(raw);
}

uint64_t od_map_bytes(uint64_t bytes)
{
	return od_round_up(bytes + OD_PAD_BYTES, OD_PAGE_BYTES);
}

static void *map_pages(size_t bytes)
{
	void *p;

	if (bytes > SIZE_MAX - OD_PAD_BYTES - OD_PAGE_BYTES)
		return NULL;
	p = mmap(NULL, od_map_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p != MAP_FAILED ? p : NULL;
}

void *od_map(size_t bytes)
{
	void *p = map_pages(bytes);

	if (p != NULL)
		advise_huge_pages(p, bytes);
	return p;
}

void *od_map_sparse(size_t bytes)
{
	void *p = map_pages(bytes);

	if (p != NULL)
		madvise(p, od_map_bytes(bytes), MADV_NOHUGEPAGE);
	return p;
}

void od_unmap(void *p, size_t bytes)
{
	if (p != NULL)
		munmap(p, od_map_bytes(bytes));
}

uint64_t od_map_used_bytes(uint64_t bytes, uint64_t used)
{
	const uint64_t all = od_map_bytes(bytes),
		       some = od_map_bytes(used) + (bytes >= HUGE_FROM_BYTES ? HUGE_PAGE_BYTES : 0);

	return used == 0 ? 0 : some < all ? some : all;
}

void od_map_release(void *p, uint64_t bytes)
{
	const uintptr_t begin = ((uintptr_t)p + OD_PAGE_BYTES - 1) & ~(uintptr_t)(OD_PAGE_BYTES - 1),
			end = ((uintptr_t)p + bytes) & ~(uintptr_t)(OD_PAGE_BYTES - 1);

	if (begin < end)
		madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static uint64_t read_kib_field(const char *path, const char *field)
{
	char line[256];
	unsigned long long kib = 0;
	size_t len = strlen(field);
	FILE *f = fopen(path, "re");

	if (f == NULL)
		return 0;
	while (fgets(line, sizeof(line), f) != NULL) {
		if (strncmp(line, field, len) == 0) {
			if (sscanf(line + len, "%llu", &kib) != 1)
				kib = 0;
			break;
		}
	}
	fclose(f);
	return (uint64_t)kib * 1024u;
}

uint64_t od_peak_rss_bytes(void)
{
	return read_kib_field("/proc/self/status", "VmHWM:");
}

uint64_t od_rss_bytes(void)
{
	return read_kib_field("/proc/self/status", "VmRSS:");
}

uint64_t od_ram_bytes(void)
{
	return read_kib_field("/proc/meminfo", "MemTotal:");
}

uint64_t od_available_ram_bytes(void)
{
	const uint64_t machine = read_kib_field("/proc/meminfo", "MemAvailable:");
	const uint64_t group = od_cgroup_available_bytes("/proc/self/cgroup", "/sys/fs/cgroup");

	return group < machine ? group : machine;
}

/* sysfs knows what a CPU shares; sysconf multiplies it by mistaken counts on some virtual machines. */
static uint64_t cache_from_sysfs(void)
{
	uint64_t largest = 0;

	for (int i = 0; i < 8; i++) {
		char path[80];
		unsigned long long kib;
		FILE *f;

		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
		f = fopen(path, "re");
		if (f == NULL)
			break;
		if (fscanf(f, "%lluK", &kib) == 1 && kib * 1024 > largest)
			largest = kib * 1024;
		fclose(f);
	}
	return largest;
}

uint64_t od_cache_bytes(void)
{
	uint64_t bytes = cache_from_sysfs();
	long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);

	return bytes != 0 ? bytes : (l3 > 0 ? (uint64_t)l3 : 0);
}

bool od_grow(void **v, size_t n, size_t more, size_t *cap, size_t size)
{
	size_t want = *cap, bytes;
	void *bigger;

	if (n <= *cap && more <= *cap - n)
		return true;
	if (more > SIZE_MAX / 4 || n > SIZE_MAX / 4)
		return false;
	while (want < n + more)
		want = want < 16 ? 16 : 2 * want;
	if (__builtin_mul_overflow(want, size, &bytes))
		return false;
	bigger = realloc(*v, bytes);
	if (bigger == NULL)
		return false;
	*v = bigger;
	*cap = want;
	return true;
}

#include "tests/fuzz/gguf_bytes.h"

#include <sanitizer/allocator_interface.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

static _Atomic long live, most;
static bool installed;

static void on_malloc(const volatile void *p, size_t n)
{
	const long now = atomic_fetch_add(&live, (long)n) + (long)n;

	(void)p;
	check(atomic_load(&most) == 0 || now <= atomic_load(&most));
}

static void on_free(const volatile void *p)
{
	if (p != NULL)
		atomic_fetch_sub(&live, (long)__sanitizer_get_allocated_size(p));
}

void gguf_bytes_begin(size_t limit)
{
	if (!installed)
		check(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) != 0);
	installed = true;
	atomic_store(&live, 0);
	atomic_store(&most, (long)limit);
}

void gguf_bytes_end(void)
{
	atomic_store(&most, 0);
}

const char *gguf_bytes_file(const uint8_t *bytes, size_t len, size_t file_bytes)
{
	static char path[64];
	static int fd = -1;

	if (fd < 0)
		fd = memfd_create("fuzz", 0);
	check(fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)file_bytes) == 0);
	check(pwrite(fd, bytes, len, 0) == (ssize_t)len);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return path;
}

/* cgroup.h - the memory that the kernel still leaves to this process's control group: a container, or a service with
 * MemoryMax=.
 *
 * Thread: any. */
#ifndef OD_BASE_CGROUP_H
#define OD_BASE_CGROUP_H

#include <stdint.h>

/* Limits of the group and of those around it; page cache counts as free. UINT64_MAX: there is no limit, or none can be
 * read. groups: /proc/self/cgroup; mount: /sys/fs/cgroup, with the memory controller of version 1 or 2. */
uint64_t od_cgroup_available_bytes(const char *groups, const char *mount);

#endif

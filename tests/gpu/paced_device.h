/* paced_device.h - a device for tests and benchmarks that computes on the CPUs and takes no less time than a given
 * machine would: the same bits and kernel class as the CPUs, memory that the host cannot map, as a GPU with a bus of
 * its own. Programs open it as the plugin libod_paced.so (paced_plugin.c). $OD_PACED gives the machine as words:
 *   speed=X         weights multiplied with one row: 1 is 10^10 a second
 *   many=X          multiply-adds with many rows: 1 is 10^10 a second; default 8 x speed
 *   read=SIZE       bytes that a load brings to the device a second (put on the load queue)
 *   op=TIME         each operation takes this longer
 *   layer=TIME      so does each attention (OD_OP_ATTEND or OD_OP_DELTA): one a layer
 *   expert=TIME     so does each routed expert that has rows, however many
 *   stretch=X       all of it takes X times as long
 * TIME is a number with us or ms. A word that is absent takes no time. A product of W weights with R rows takes
 * max(W / speed, W R / many). "@FILE": the words are in FILE, which is read again when it changes (replace it by
 * rename), so that a machine can slow down while it runs.
 *
 * Work is done when it is queued; a wait returns when the machine would be done. A wait that returns late makes the
 * queue's next work begin earlier by as much, so that late wake-ups do not add up. Nothing spins: many paced machines
 * fit on a few cores, as long as real work is short.
 * Thread and owner: as device.h. */
#ifndef OD_TESTS_PACED_DEVICE_H
#define OD_TESTS_PACED_DEVICE_H

#include "common/compute/backend.h"
#include "common/compute/device.h"

/* As od_device_cpu_new. words: as $OD_PACED. */
OD_MUST_CHECK int od_device_paced_new(struct od_device **out, const char *words, enum od_cpu cpu, unsigned n_threads,
				      const char *name, struct od_err *err);

#endif

#include "tests/bench/live/recall_progress.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH 30
#define EVERY_NS (OD_NS_PER_S / 5)

void recall_progress_text(char *buf, unsigned size, uint64_t done, uint64_t all, uint64_t elapsed_ns)
{
	const double share = all > 0 ? (double)done / (double)all : 1;
	char bar[WIDTH + 1];

	for (int i = 0; i < WIDTH; i++)
		bar[i] = i < (int)(share * WIDTH) ? '#' : '-';
	bar[WIDTH] = '\0';
	if (done == 0) {
		snprintf(buf, size, "[%s]   0 %%", bar);
	} else {
		uint64_t left = (uint64_t)((double)elapsed_ns / OD_NS_PER_S * (1 - share) / share + 0.5);

		snprintf(buf, size, "[%s] %3d %%, %" PRIu64 ":%02" PRIu64 " left", bar, (int)(share * 100), left / 60,
			 left % 60);
	}
}

static void show(struct recall_progress *p)
{
	char text[128], *from = text;
	struct winsize window;

	recall_progress_text(text, sizeof(text), p->done, p->all, p->last_ns - p->begin_ns);
	/* A line that wraps could not be written over. */
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_col <= strlen(text))
		from = strchr(text, ']') + 1;
	fprintf(stderr, "\r%s\033[K", from); /* the code behind clears the rest of a longer line */
}

void recall_progress_begin(struct recall_progress *p, bool shown, uint64_t all)
{
	*p = (struct recall_progress){ .shown = shown, .all = all };
	pthread_mutex_init(&p->lock, NULL);
	p->begin_ns = p->last_ns = od_now_ns();
	if (shown)
		show(p);
}

void recall_progress_done(struct recall_progress *p, uint64_t n)
{
	uint64_t now = od_now_ns();

	pthread_mutex_lock(&p->lock);
	p->done += n;
	if (p->shown && now - p->last_ns >= EVERY_NS) {
		p->last_ns = now;
		show(p);
	}
	pthread_mutex_unlock(&p->lock);
}

void recall_progress_end(struct recall_progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	pthread_mutex_destroy(&p->lock);
}

/* page.h - the page that od-main serves at /: its files are part of the program, and load nothing from elsewhere.
 *
 * Thread: the HTTP thread. Owner: constant. */
#ifndef ODM_PAGE_H
#define ODM_PAGE_H

#include "main-node/serve/http/exchange.h"

struct odm_page_file {
	const char *name;
	const char *etag; /* names its bytes, with quotes */
	const char *begin, *end;
};

/* Ends with a NULL name. embed.sh writes it. */
extern const struct odm_page_file odm_page_files[];

/* "/" is index.html, "/page/NAME" any file. */
extern const struct odm_endpoint odm_page_endpoint, odm_page_file_endpoint;

#endif

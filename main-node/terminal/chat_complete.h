/* chat_complete.h - words that Tab offers: names of commands, of settings behind /set, of files behind /save and /load.
 *
 * Thread: main(). */
#ifndef ODM_CHAT_COMPLETE_H
#define ODM_CHAT_COMPLETE_H

#include <stddef.h>

/* Finds the words that may follow the text that ends at the cursor: a list of words, malloc'd as its strings, NULL at
 * its end, and where in text the word begins that each of them replaces. NULL: nothing. */
char **odm_chat_completions(const char *text, size_t *begin);

#endif

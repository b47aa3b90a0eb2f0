/* tok_unicode.h - classes of characters, by the Unicode version of the reference.
 *
 * Thread: any, after tok_classes_init. */
#ifndef OD_TEXT_TOK_UNICODE_H
#define OD_TEXT_TOK_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

/* Bits of tok_class. */
enum tok_class_bits {
	TOK_C_SPACE = 1, /* White_Space */
	TOK_C_NUMBER = 2, /* N */
	TOK_C_UPPER = 4, /* Lu, Lt */
	TOK_C_LOWER = 8, /* Ll */
	TOK_C_LETTER = 16, /* Lm, Lo */
	TOK_C_MARK = 32, /* M */
	TOK_C_SYMBOL = 64, /* P, S */
	TOK_C_MOVES = 128, /* NFC may change it or what follows or precedes it */
};
#define TOK_C_LETTERS (TOK_C_UPPER | TOK_C_LOWER | TOK_C_LETTER)
extern uint8_t tok_class[0x110000];
/* Fills tok_class, once in a process: some milliseconds. */
void tok_classes_init(void);
bool tok_is_han(int32_t cp); /* script */

#endif

/* pair_command.h - od-main pair: shows six words, and lets the machines join that say them. Thread: main(). */
#ifndef ODM_PAIR_COMMAND_H
#define ODM_PAIR_COMMAND_H

/* argv[0] is "pair". Returns the exit status. */
int odm_pair_command(int argc, char **argv);

#endif

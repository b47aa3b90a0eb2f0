/* keygen_command.h - od-main keygen: makes this node's pair of keys. Thread: main(). */
#ifndef ODM_KEYGEN_COMMAND_H
#define ODM_KEYGEN_COMMAND_H

/* argv[0] is "keygen". Returns the exit status. */
int odm_keygen_command(int argc, char **argv);

#endif

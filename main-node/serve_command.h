/* serve_command.h - od-main serve. Thread: main(). */
#ifndef ODM_SERVE_COMMAND_H
#define ODM_SERVE_COMMAND_H

/* argv[0] is the command's name. Returns the exit status. */
int odm_serve_command(int argc, char **argv);

#endif

/* template_command.h - od-main template: prints the prompt that a chat template makes of messages. */
#ifndef ODM_TEMPLATE_COMMAND_H
#define ODM_TEMPLATE_COMMAND_H

/* argv[0] is "template". Returns the exit status. */
int odm_template_command(int argc, char **argv);

#endif

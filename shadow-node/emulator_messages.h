/* emulator_messages.h - messages from main to an emulator (emulator.h). Thread: as emulator.h. */
#ifndef ODS_EMULATOR_MESSAGES_H
#define ODS_EMULATOR_MESSAGES_H

#include "shadow-node/emulator.h"

/* Handles a SEQ_OPEN, TOKENS, STEP, STATE, SEQ_TRUNCATE or SEQ_CLOSE from main. On an error the message was dropped (a
 * STATE: some of its ranges, or all); err has the reason. OD_ERR_BUSY: it concerns, or may concern, a sequence that is
 * not predicted for lack of memory; the log has a warning already. */
OD_MUST_CHECK int ods_emulator_message(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns,
				       struct od_err *err);

#endif

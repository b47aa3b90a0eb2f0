/* plan_report.h - a plan as text for a terminal, or as JSON with all numbers. Thread: any. */
#ifndef ODP_PLAN_REPORT_H
#define ODP_PLAN_REPORT_H

#include <stdio.h>

#include "deploy/plan/plan.h"

void odp_plan_print(const struct odp_plan *p, FILE *out);
OD_MUST_CHECK int odp_plan_print_json(const struct odp_plan *p, FILE *out, struct od_err *err);

#endif

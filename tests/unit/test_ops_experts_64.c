/* test_ops_experts.c with 64 rows in a step: a row's results have the same bits in any company. */
#define ROWS 64u
#define FEW_TESTS
#pragma GCC diagnostic ignored "-Wunused-function"
#include "tests/unit/test_ops_experts.c"

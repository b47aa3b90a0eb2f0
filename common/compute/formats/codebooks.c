#include "common/compute/formats/codebooks.h"

#define OD_CODEBOOK(type, name, n) const type name[n]
#include "common/compute/formats/codebook_data.h"
